"""Schema of a pipeline of four stages, and of the command `recsys.pipeline`."""

from typing import Literal

from pydantic.dataclasses import dataclass

from recsys.base.ranges import Count, Natural
from recsys.schema.fields import CHECKED, MISSING, Local, Node, Texts, field


@dataclass(config=CHECKED)
class TableConfig:
    """A table: users, items, or what users did."""

    file: Texts = field(..., "a Parquet, CSV, TSV or JSON-lines file, a glob of them, or a list")
    columns: dict[str, str] | None = field(
        None, "column -> its name in the file; null: all columns, as they are named there"
    )
    separator: str | None = field(None, "CSV: between values, \\t for a TAB; null: a comma, in .tsv files a TAB")
    quote: str | None = field('"', "CSV: quotes values; null: none does")
    names: list[str] | None = field(None, "CSV without a header: names of the columns")
    encoding: str = field("utf-8", "CSV")


@dataclass(config=CHECKED)
class FeaturesConfig:
    """Stored features of users and items (recsys.feature_store)."""

    definition: Local | None = field(None, "null: nothing is stored")
    store: str = field("sqlite:///features.db", "sqlite:///PATH | redis://HOST:PORT/DB")
    history: str | None = field(
        None,
        "a list of the user's last items, oldest first (last: ITEM, number: N), which requests get as their "
        "history instead of `events`",
    )


@dataclass(config=CHECKED)
class EvaluateStagesConfig:
    """Targets, splits and logs that lists are compared with."""

    split: Literal["test", "validation"] = field("test", "the events whose items are the targets")
    by: Literal["time", "leave_one_out"] = field("time", "as data.split.by of the models")
    validation: float = field(0.1, "shares of events, as data.split by time has them", ge=0, lt=1)
    test: float = field(0.1, gt=0, lt=1)
    start: float | None = field(None, "time of the first event of the split; null: as the shares say")
    stop: float | None = field(None, "time of the first event after it; null: as the shares say")
    relevant: str | None = field(None, "SQL over event columns: the events that are targets; null: all of the test")
    targets: TableConfig | None = field(None, "user, item: the targets, if they are not events")
    best: TableConfig | None = field(
        None, "user, item and `expected`: the gain that an item is expected to have, which tells the best possible list"
    )
    k: Count = field(10, "length of the lists that are measured")
    log: TableConfig | None = field(
        None, "a table of logged lists: request, item, position, propensity, reward, and columns of the request"
    )
    reward: str | None = field(
        None, "the prediction that estimates rewards of the log, such as p_click; null: the first one"
    )
    group: str | None = field(None, "a column of users, for calibration by group")
    exposure: list[str] = field(list, "columns of items: how often lists show items with each value")
    separator: str | None = field(None, "between several values of these columns; null: each is one value")
    users: Count | None = field(None, "number of users, drawn at random; null: all")
    seed: Natural = 0
    resamples: int = field(2000, "of the users, for intervals", ge=100, le=10**6)


@dataclass(config=CHECKED)
class PipelineConfig:
    """Config of `python -m recsys.pipeline run=FILE` and of the file itself."""

    action: Literal["run", "evaluate", "candidates", "demo"] = "run"
    run: Local = field(MISSING, "the YAML file of a pipeline")
    input: Texts = field(list, "run: a file of requests, with the user's column and columns of the request")
    output: Local | None = field(None, "a file or a folder to write")
    # the pipeline
    name: str = field("pipeline", "the pipeline")
    root: Local = field(".", "folder from which the paths of runs, and of tables, start")
    data_root: Local | None = field(None, "folder from which the paths of tables start; null: root")
    user: str = field("user", "column that names the user in events, users and requests")
    item: str = field("item", "column that names the item in events and items")
    time: str | None = field(None, "column with the time of events and requests")
    context: list[str] = field(list, "further columns of requests that models and rules read")
    k: int = field(10, "length of the lists", ge=1, le=10_000)
    candidates: int = field(200, "most items that are left when sources are merged", ge=1, le=100_000)
    history: int = field(200, "most events of a user that models read", ge=1, le=100_000)
    events: TableConfig | None = field(None, "what users did; null: requests bring their histories")
    users: TableConfig | None = field(None, "columns of users, for rules and models")
    items: TableConfig | None = field(None, "columns of items, for rules, formulas and orders")
    features: FeaturesConfig = field(FeaturesConfig)
    sources: dict[str, Node] = field(dict, "name -> _target_: recsys.stages.sources")
    merge: dict[str, Node] | None = field(None, "_target_: recsys.stages.merge; null: reciprocal ranks")
    filters: dict[str, Node] = field(dict, "name -> _target_: recsys.stages.filters")
    score: dict[str, Node] | None = field(None, "_target_: recsys.stages.score; null: the scores of the sources")
    order: dict[str, Node] = field(dict, "name -> _target_: recsys.stages.order")
    evaluate: EvaluateStagesConfig = field(EvaluateStagesConfig)
    threads: int = field(1, "number of threads of a model", ge=1, le=4096)
    seed: Natural = field(0, "of exploration")
