"""python -m recsys.new data=mine files='logs/*.csv' [label=clicked] ... | model=mine [kind=retrieval] | experiment=mine

data= looks at the files and writes conf/data/mine.yaml: how to read them, what each column holds, the label, the
features and the split, each with the reason. Where the files do not tell, it asks, and exits with status 3.
model= and experiment= write skeletons. Nothing is overwritten.
"""

from dataclasses import asdict

from recsys.cli import command_line
from recsys.schema.command_schemas import NewConfig


def _command(cfg: NewConfig) -> None:
    from recsys.base.errors import NeedsAnswer, UserError
    from recsys.new.questions import Answers
    from recsys.new.write_config import new_data, new_experiment, new_model

    given = {k: v for k, v in asdict(cfg.create).items() if v is not None}
    if len(given) != 1:
        hint = f"not {' and '.join(f'{k}=' for k in given)}" if given else "such as data=mine files='logs/*.csv'"
        raise UserError(f"recsys.new: type exactly one of data=NAME, model=NAME and experiment=NAME, {hint}")
    [(what, name)] = given.items()
    if what != "model" and cfg.kind != "ranking":
        advice = "; for retrieval, set label=null" if what == "data" else ""
        raise UserError(f"kind={cfg.kind}: applies only to model=NAME{advice}")
    if what == "data":
        positive = "auto" if cfg.positive == ["auto"] else tuple(cfg.positive) if cfg.positive else None
        answers = Answers(cfg.label, cfg.user, cfg.item, cfg.time, positive, cfg.header, cfg.yes)
        if not new_data(name, cfg.files, answers):
            raise SystemExit(NeedsAnswer.status)
        return
    for key, default in asdict(NewConfig()).items():
        if key not in ("create", "kind") and (value := getattr(cfg, key)) != default:
            raise UserError(f"{key}={value}: applies only to data=NAME; leave it out")
    if what == "model":
        new_model(name, cfg.kind)
    else:
        new_experiment(name)


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("new", _command)


if __name__ == "__main__":
    main()
