"""Schema of a pipeline of four stages, and of the command `recsys.pipeline`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from recsys.ranges import folder, number


@dataclass
class TableConfig:
    """A table: users, items, or what users did."""

    file: Any = MISSING  # a Parquet, CSV, TSV or JSON-lines file, a glob of them, or a list
    columns: dict[str, str] | None = None  # column -> its name in the file; null: all columns, as they are named there
    separator: str | None = None  # CSV: between values; null: a comma, in .tsv files a TAB
    quote: str | None = '"'  # CSV: quotes values; null: none does
    names: list[str] | None = None  # CSV without a header: names of the columns
    encoding: str = "utf-8"  # CSV


@dataclass
class FeaturesConfig:
    """Stored features of users and items (recsys.feature_store)."""

    definition: str | None = folder(None, "name a YAML file of views")  # null: nothing is stored
    store: str = "sqlite:///features.db"  # sqlite:///PATH | redis://HOST:PORT/DB
    # a list of the user's last items, oldest first (last: ITEM, number: N), which requests get as their history
    # instead of `events`
    history: str | None = None


@dataclass
class EvaluateStagesConfig:
    """Targets, splits and logs that lists are compared with."""

    split: str = "test"  # test | validation: the events whose items are the targets
    by: str = "time"  # time | leave_one_out, as data.split.by of the models
    validation: float = number(0.1, at_least=0, below=1)  # shares of events, as data.split by time has them
    test: float = number(0.1, above=0, below=1)
    start: float | None = None  # time of the first event of the split; null: as the shares say
    stop: float | None = None  # time of the first event after it; null: as the shares say
    relevant: str | None = None  # SQL over event columns: the events that are targets; null: all of the test
    targets: TableConfig | None = None  # user, item: the targets, if they are not events
    # user, item and `expected`: the gain that an item is expected to have, which tells the best possible list
    best: TableConfig | None = None
    k: int = number(10, at_least=1)  # length of the lists that are measured
    # a table of logged lists: request, item, position, propensity, reward, and columns of the request
    log: TableConfig | None = None
    reward: str | None = None  # the prediction that estimates rewards of the log, such as p_click; null: the first one
    group: str | None = None  # a column of users, for calibration by group
    users: int | None = number(None, at_least=1)  # number of users, drawn at random; null: all
    seed: int = number(0, at_least=0)
    resamples: int = number(2000, at_least=100, limit=10**6)  # of the users, for intervals


@dataclass
class PipelineConfig:
    """Config of `python -m recsys.pipeline run=FILE` and of the file itself."""

    action: str = "run"  # run | evaluate | candidates | demo
    run: str = folder(MISSING, "name the YAML file of a pipeline")
    input: Any = None  # run: a file of requests, with the user's column and columns of the request
    output: str | None = folder(None, "name a file or a folder to write")
    # the pipeline
    name: str = "pipeline"
    root: str = "."  # folder from which the paths of runs, and of tables, start
    data_root: str | None = None  # folder from which the paths of tables start; null: root
    user: str = "user"  # column that names the user in events, users and requests
    item: str = "item"  # column that names the item in events and items
    time: str | None = None  # column with the time of events and requests
    context: list[str] = field(default_factory=list)  # further columns of requests that models and rules read
    k: int = number(10, at_least=1, limit=10_000)  # length of the lists
    candidates: int = number(200, at_least=1, limit=100_000)  # most items that are left when sources are merged
    history: int = number(200, at_least=1, limit=100_000)  # most events of a user that models read
    events: TableConfig | None = None  # what users did; null: requests bring their histories
    users: TableConfig | None = None  # columns of users, for rules and models
    items: TableConfig | None = None  # columns of items, for rules, formulas and orders
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    sources: dict[str, Any] = field(default_factory=dict)  # name -> _target_: recsys.stages.sources
    merge: Any = None  # _target_: recsys.stages.merge; null: reciprocal ranks
    filters: dict[str, Any] = field(default_factory=dict)  # name -> _target_: recsys.stages.filters
    score: Any = None  # _target_: recsys.stages.score; null: the scores of the sources
    order: dict[str, Any] = field(default_factory=dict)  # name -> _target_: recsys.stages.order
    evaluate: EvaluateStagesConfig = field(default_factory=EvaluateStagesConfig)
    threads: int = number(1, at_least=1, limit=4096)  # number of threads of a model
    seed: int = number(0, at_least=0)  # of exploration
