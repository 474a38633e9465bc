"""python docs/make_reference.py: write docs/reference/generated/, the pages that follow from the code.

They are every command and config key with its type, range, default and comment; models and losses with their
parameters; metrics; and the Python API. The site writes them anew for each build.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import TypeAdapter

from recsys.__main__ import COMMANDS as SUMMARIES
from recsys.base.ranges import MAX_INT
from recsys.cli.command_help import keys, usage
from recsys.config.compose import COMMANDS, compose_with_choices, conf_dir
from recsys.evaluation.metrics_table import BY_GROUP, LABEL_METRICS, METRICS, Metric, RetrievalMetric
from recsys.schema import data_schema, run_schema, source_schema
from recsys.schema.class_facts import own_model

MARK = "<!-- written by docs/make_reference.py -->"
PAGES = {  # of the keys of a training: page -> title, a rule for the names of its keys, a module for mappings in them
    "train_keys": ("Keys of a training", lambda name: not name.startswith("data."), run_schema),
    "source_keys": ("Keys of data.source", lambda name: name.startswith("data.source."), source_schema),
    "data_keys": ("Keys of data", lambda name: re.match(r"data\.(?!source\.)", name) is not None, None),
    "feature_keys": ("Keys of features and other parts of data", lambda _: False, data_schema),
}
MAPPINGS = (
    "TableRule",
    "JoinConfig",
    "PartConfig",
    "ArrayConfig",
    "NamedLabelConfig",
    "DenseConfig",
    "SparseConfig",
    "VectorsConfig",
    "TableVectorsConfig",
)  # schemas of values of mappings and lists
API = {
    "recsys": ("train", "load", "recommend", "open_pipeline", "TrainedRun", "Page", "Predictor", "Recommender",
               "RowTransforms", "compose", "check", "RunConfig", "UserError"),
    "recsys.training.evaluate_run": ("evaluate",),
    "recsys.data.prepare.prepared": ("prepare", "Prepared"),
    "recsys.data.loader.parquet_loader": ("ParquetLoader",),
    "recsys.interface.features": ("FeatureSpec", "SparseFeature", "DenseFeature"),
    "recsys.interface.labels": ("BinaryLabel", "NumberLabel", "ClassLabel"),
    "recsys.interface.batch": ("Batch", "JaggedIds", "CandidateLists", "ItemLists", "item_rows"),
    "recsys.models.protocols": ("RetrievalModel", "ClosedFormModel", "FittedRankingModel"),
    "recsys.losses": ("RankingLoss", "RetrievalLoss"),
    "recsys.follow.model_registry": ("ModelRegistry",),
    "recsys.follow.gate": ("decide", "GateConfig", "RowWindow", "QueryWindow"),
}  # fmt: skip


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    if not text.startswith("`"):
        text = text.translate({ord(c): f"\\{c}" for c in "_*<["})
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def type_of(hint: Any) -> str:
    """Return the name of a key's type, without its limits."""
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return type_of(arguments[0])
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_of, arguments))
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, arguments))
    if arguments:
        return f"{hint.__origin__.__name__}[{', '.join(map(type_of, arguments))}]"
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))


def range_of(hint: Any) -> str:
    """Return the range of a key's numbers, which pydantic describes as JSON Schema does."""
    schema = TypeAdapter(hint).json_schema()
    limits = next((s for s in schema.get("anyOf", [schema]) if s.get("type") != "null"), {})
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return " and ".join(f"{word} {limits[end]}" for end, word in words.items() if limits.get(end, MAX_INT) != MAX_INT)


def key_table(schema: type[Any], shown: Callable[[str], bool] = lambda _: True) -> str:
    """Return the table of a schema's keys whose names are to be shown."""
    found = [k for k in keys(schema) if shown(k.name)]
    rows = ((f"`{k.name}`", type_of(k.hint), f"`{k.default}`", range_of(k.hint), k.meaning) for k in found)
    return table(("key", "type", "default", "range", "meaning"), rows)


def command_page(name: str) -> str:
    """Return the page of a command."""
    parts = [f"# recsys {name}", SUMMARIES[name], "```text\n" + usage(name).strip() + "\n```"]
    schema = COMMANDS.get(name)
    if name in ("plan", "preprocess", "doctor", "train"):
        assert schema is not None
        own = {k.name for k in keys(schema)} - {k.name for k in keys(COMMANDS["train"])}
        parts += [key_table(schema, own.__contains__)] if own else []
        parts.append("It also reads the keys of [a training](train_keys.md), of [data](data_keys.md) and of "
                     "[data.source](source_keys.md).")  # fmt: skip
    elif schema is not None:
        parts.append(key_table(schema))
    return "\n\n".join(parts)


def keys_page(page: str) -> str:
    """Return the page of some keys of a training, with the schemas of the mappings in them."""
    title, shown, module = PAGES[page]
    main = key_table(run_schema.TrainConfig, shown)
    parts = [f"# {title}", *([main] if "\n| `" in main else [])]
    for name in MAPPINGS if module is not None else ():
        schema = vars(module).get(name)
        if schema is not None and schema.__module__ == module.__name__:
            parts += [f"## {name}", " ".join((inspect.getdoc(schema) or "").split()), key_table(schema)]
    return "\n\n".join(parts)


def classes_page(group: str, title: str) -> str:
    """Return the page of the models or the losses: the command, and the class with its parameters."""
    parts, shown = [f"# {title}"], dict[str, str]()
    for file in sorted((conf_dir() / group).glob("*.yaml")):
        first = file.read_text().splitlines()[0].removeprefix("# ")
        target = yaml.safe_load(file.read_text())["_target_"]
        about = f"```{{eval-rst}}\n.. autoclass:: {target}\n```"
        if target in shown:
            about = f"Another setting of the class of [{shown[target]}](#{shown[target]})."
        shown.setdefault(target, file.stem)
        parts += [f"## {file.stem}", f"`{first}`", about]
    return "\n\n".join(parts)


def defaults_page() -> str:
    """Return the page of the settings with which retrieval models are trained, if you set none."""
    targets = {f.stem: yaml.safe_load(f.read_text())["_target_"] for f in (conf_dir() / "model").glob("*.yaml")}
    kinds = {name: facts.model_kind for name, t in targets.items() if (facts := own_model(t)) is not None}
    rows = []
    for name in sorted(name for name, kind in kinds.items() if kind in ("retrieval", "closed_form")):
        cfg, choices, _ = compose_with_choices("train", [f"model={name}", "data=movielens_1m"])
        own = " ".join(f"{k}={v}" for k, v in cfg.model.items() if k != "_target_")
        loss = "fitted at once" if choices["loss"] is None else f"`{choices['loss']}`"
        count = "" if cfg.loss is None else str(cfg.loss.get("count", ""))
        rate = "" if cfg.loss is None else f"{cfg.optim.dense.lr:g}"
        rows.append((f"`{name}`", loss, count, rate, f"`{own}`" if own else ""))
    trainer = cfg.trainer
    about = textwrap.fill(
        "Values of the keys of `model`, and of the loss and the learning rates that a model's YAML chooses. All train "
        f"with batches of {trainer.batch_size} rows for at most {trainer.max_epochs} epochs, until "
        f"{trainer.early_stopping.patience} validations have brought no improvement. `experiment=sasrec_paper` and "
        "others have the settings of papers; `python -m recsys.train model=sasrec --help` shows all keys and values.",
        120,
    )
    head = ("model", "`loss`", "`loss.count`", "learning rate", "`model`")
    return f"# Defaults of retrieval models\n\n{about}\n\n" + table(head, iter(rows))


def measured_by(metric: Metric) -> str:
    """Return what a metric measures: kinds of labels, the order within groups, or rankings of items."""
    if isinstance(metric, RetrievalMetric):
        return "retrieval"
    kinds = [kind for kind, of in LABEL_METRICS.items() if metric.name in (*of.always, *of.more)]
    return ", ".join(kinds) or ("groups" if metric.name in BY_GROUP else "binary")


def metrics_page() -> str:
    """Return the page of metrics."""
    better = {"higher": "higher", "lower": "lower", None: ""}
    rows = ((f"`{m.name}{'@k' if m.at_k else ''}`", m.label, measured_by(m), better[m.better], m.meaning)
            for m in METRICS.values())  # fmt: skip
    return "# All metrics\n\n" + table(("name", "label", "measures", "better", "meaning"), rows)


def api_page(module: str, names: Sequence[str]) -> str:
    """Return the page of a module's public names."""
    parts = [f"# {module}"]
    for name in names:
        kind = "autoclass" if name[0].isupper() else "autofunction"
        # recsys.train is a module that can be called; its function is recsys.api's
        home = (
            "recsys.api" if module == "recsys" and name in ("train", "load", "recommend", "open_pipeline") else module
        )
        members = "\n   :members:" if kind == "autoclass" else ""
        parts.append(f"```{{eval-rst}}\n.. {kind}:: {home}.{name}{members}\n```")
    return "\n\n".join(parts)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    for name in SUMMARIES:
        yield f"command_{name}", command_page(name)
    for name in PAGES:
        yield name, keys_page(name)
    yield "model_classes", classes_page("model", "Models and their parameters")
    yield "loss_classes", classes_page("loss", "Losses and their parameters")
    yield "retrieval_defaults", defaults_page()
    yield "metrics", metrics_page()
    for module, names in API.items():
        yield f"api_{module.replace('.', '_')}", api_page(module, names)


def write_reference(folder: Path) -> list[Path]:
    """Write all pages below a folder, and return their files."""
    target = folder / "generated"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages():
        file = target / f"{name}.md"
        text = f"{MARK}\n\n{text}\n"
        if not file.exists() or file.read_text() != text:  # Sphinx reads only what has changed
            file.write_text(text)
        written.append(file)
    for file in set(target.glob("*.md")) - set(written):
        file.unlink()
    return written


if __name__ == "__main__":
    print(textwrap.fill(", ".join(str(f) for f in write_reference(Path(__file__).parent / "reference")), 120))
