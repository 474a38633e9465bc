"""Entry point of `recsys COMMAND ...` and `python -m recsys COMMAND ...`: runs a command, or lists all of them."""

import sys
from importlib import import_module

from recsys.base.console import results

# Each command is a module recsys.COMMAND that has a `main` function, or a package that has a __main__ module.
COMMANDS = {
    "new": "Look at your files and write their YAML; or write the skeleton of a model or an experiment.",
    "train": "Train a model, test it, and write a run folder; with -m, run a sweep.",
    "models": "List the models, and which of them fit a data set.",
    "evaluate": "Measure a run's checkpoint on a split.",
    "predict": "Score raw rows with a run, or list the k best items of each group.",
    "export": "Write a run's model, transforms and tables as one folder; verify such a folder.",
    "serve": "Serve exported models over HTTP and gRPC.",
    "follow": "Follow data as it arrives: train on, judge the model, put it into service or not.",
    "registry": "List a model's versions; promote one, or return to the one before.",
    "feature_store": "Write the latest features of users and items to a store; join them to training rows.",
    "pipeline": "Retrieve, filter, score and order items by one YAML; say which stage loses what.",
    "loadtest": "Measure how fast a server answers, and how much load it can take.",
    "preprocess": "Prepare data without training; report=true writes an HTML page that describes it.",
    "plan": "Plan sharding for a cluster, without access to its machines.",
    "checkpoint": "Inspect a checkpoint, reshard it, or export its tables.",
    "sweep": "Show a sweep, resume it, or print its best trial.",
    "report": "Compare runs and sweeps on one HTML page.",
    "doctor": "Check packages, kernels, memory, disk and data on this machine.",
    "dashboard": "Create a Weights & Biases workspace with panels for recsys runs.",
}


def main() -> None:
    """Run the command that the first argument names, with the rest as its arguments."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        first = "Usage: recsys COMMAND [key=value ...]   (the same as python -m recsys.COMMAND)"
        lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
        last = "recsys COMMAND --help lists a command's keys. recsys --version prints the versions."
        results.print("\n".join([first, "", *lines, "", last]), markup=False)
        return
    if arguments[0] in ("-V", "--version"):
        from recsys.base.packages import describe

        results.print(describe(), markup=False)
        return
    name = arguments[0]
    if name not in COMMANDS:
        from recsys.base.errors import did_you_mean

        hint = "run `recsys` to list the commands"
        print(f"error: {name}: no such command{did_you_mean(name, COMMANDS)} ({hint})", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [f"recsys {name}", *arguments[1:]]
    module = import_module(f"recsys.{name}")
    if not hasattr(module, "main"):
        module = import_module(f"recsys.{name}.__main__")
    module.main()


if __name__ == "__main__":
    main()
