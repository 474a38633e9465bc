"""Settings of `python -m recsys.follow FILE`: one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from recsys.base.durations import Duration
from recsys.base.errors import UserError
from recsys.base.parsing import StrictSettings, parse
from recsys.files.model_folder import GuardSettings
from recsys.files.user_files import check_name, on_file_system, problem_of
from recsys.follow.gate import GateConfig
from recsys.follow.increment_checks import CheckConfig
from recsys.store.definition import read_yaml

LocalPath = Annotated[Path, BeforeValidator(lambda value: on_file_system(str(value)))]
OURS = ("run_dir", "resume", "start_from", "data.root", "data.prepared", "data.source.files", "data.split", "sweep")


class PartitionsConfig(StrictSettings):
    """Where data arrives, in partitions: folders or files whose names sort in the order of time.

    folder: the folder in which partitions appear
    pattern: glob of the partitions in it: day=*, day=*/hour=*, *.parquet
    every: length of a partition's interval; its name holds the start: 2026-01-31, 2026-01-31T12, day=2026-01-31/hour=12
    delay: time after an interval's end until its labels are ripe
    clock: data: the time is the end of the newest partition, so that a replay equals live following | wall: this
        machine's clock, in UTC
    settle_seconds: a partition that was changed within this time is still being written
    context: number of accepted partitions before those of a training that features which look back read, too
    stream: a stream whose events are written into partitions by their time: a file of JSON lines, or
        kafka://HOST:PORT/TOPIC; it needs `delay`
    time: key of the events' time, in seconds since 1970 or as ISO 8601
    kafka_properties: a file with settings of Kafka
    """

    folder: LocalPath
    pattern: str = "day=*"
    every: Duration = "1d"
    delay: Duration | None = None
    clock: Literal["data", "wall"] = "data"
    settle_seconds: float = Field(0.0, ge=0)
    context: int = Field(0, ge=0)
    stream: str | None = None
    time: str = "time"
    kafka_properties: LocalPath | None = None

    @model_validator(mode="after")
    def _a_stream_has_a_delay(self) -> PartitionsConfig:
        if self.stream is not None and self.delay is None:
            raise ValueError(
                "delay: is missing; with a stream, a partition is complete some time after its end, such as 10m"
            )
        return self


class TrainingConfig(StrictSettings):
    """How many partitions a training reads, and overrides of `recsys.train` for it.

    partitions: number of partitions; of a full training, null reads all that were accepted
    """

    partitions: int | None = Field(None, ge=1)
    overrides: list[str] = Field(default_factory=list)


class FullConfig(TrainingConfig):
    """Trainings from random weights.

    every: each N-th training is one; null: only the first
    on_drift: after a partition whose columns have drifted
    """

    every: int | None = Field(None, ge=1)
    on_drift: bool = False


class DeltasConfig(StrictSettings):
    """Versions that are deltas of the champion that their training started from (docs/how_to/follow/follow.md).

    full_every: after N - 1 deltas, each of the one before, the next version is a full artefact; 1: all versions are
    """

    full_every: int = Field(10, ge=1)


class CanaryConfig(StrictSettings):
    """The share of requests that a challenger answers before it is promoted, and the guard's settings.

    share: share of the requests
    guard: settings of the server's guard, as in serving.json
    """

    share: float = Field(0.1, gt=0, lt=1)
    guard: GuardSettings = GuardSettings()


class SliceCheckConfig(CheckConfig):
    """Limits of the checks of new partitions.

    slices: columns of the rows, for each of whose values label, calibration and auc are checked as well
    """

    slices: tuple[str, ...] = ()


class ClusterGateConfig(GateConfig):
    """What a challenger must fulfil.

    cluster: column of the rows, such as the user; rows with equal values are drawn together in the bootstrap. null:
        rows are independent or, with `metrics.gauc` or `data.group.together`, clusters are the groups of these
    """

    cluster: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows that the gate reads."""
        return (*self.slices, *([] if self.cluster is None else [self.cluster]))


class FollowConfig(StrictSettings):
    """Settings of continuous training.

    root: folder of the state, the runs and the registry
    name: name of the model in the registry
    train: overrides of `python -m recsys.train`: model, data and all that is not the data's files
    partitions: where data arrives
    first: number of partitions of the first training
    window: number of partitions, right after a training's, on which champion and challenger are compared
    increment: trainings that go on from the champion
    full: trainings from random weights
    train_on: data: every new partition starts a cycle | drift: only one that has drifted does, on all that wait
    check: limits of the checks of new partitions
    gate: what a challenger must fulfil
    export: overrides of `python -m recsys.export`
    deltas: which versions are exported as deltas
    items: a file with items of today, which are candidates of the model in service, also between trainings
    canary: null: a challenger that passes the gate is promoted at once
    keep_runs: number of run folders to keep, besides the champion's
    mlflow: address of an MLflow server or database that gets the versions and their roles, too
    wandb: set the roles as aliases of the versions' W&B artifacts, too
    """

    root: LocalPath
    name: str = "model"
    train: list[str]
    partitions: PartitionsConfig
    first: int = Field(1, ge=1)
    window: int = Field(1, ge=1)
    increment: TrainingConfig = TrainingConfig(partitions=1)
    full: FullConfig = FullConfig.model_validate({})
    train_on: Literal["data", "drift"] = "data"
    check: SliceCheckConfig = SliceCheckConfig.model_validate({})
    gate: ClusterGateConfig = ClusterGateConfig.model_validate({})
    export: list[str] = Field(default_factory=list)
    deltas: DeltasConfig = DeltasConfig.model_validate({})
    items: LocalPath | None = None
    canary: CanaryConfig | None = None
    keep_runs: int = Field(3, ge=1)
    mlflow: str | None = None
    wandb: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the rows that gate and checks read, by the key that names each."""
        named = {f"gate.slices.{c}": c for c in self.gate.slices} | {f"check.slices={c}": c for c in self.check.slices}
        return named | ({} if self.gate.cluster is None else {f"gate.cluster={self.gate.cluster}": self.gate.cluster})


def load_settings(file: Path) -> FollowConfig:
    """Read the settings of a file. Raises UserError if it cannot be read, or a value is not one that it can have."""
    if problem := problem_of(file):
        raise UserError(f"file={file}: {problem}; name the YAML of continuous training (docs/how_to/follow/follow.md)")
    settings = parse(FollowConfig, read_yaml(file), file=str(file))
    for where, overrides in {
        "train": settings.train,
        "increment.overrides": settings.increment.overrides,
        "full.overrides": settings.full.overrides,
    }.items():
        for override in overrides:
            key = override.lstrip("+~").partition("=")[0]
            if any(key == own or key.startswith(f"{own}.") for own in OURS):
                raise UserError(f"{file}: {where}: {key} is set by recsys.follow; leave it out")
    check_name(settings.name, f"{file}: name", "clicks")
    folder, pattern = settings.partitions.folder, settings.partitions.pattern
    if not folder.is_dir():
        raise UserError(f"{file}: partitions.folder={folder}: no such folder")
    if settings.items is not None and not settings.items.is_file():
        raise UserError(f"{file}: items={settings.items}: no such file; name one like data.items.file")
    if not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UserError(f"{file}: partitions.pattern={pattern!r}: must be a glob below the folder, such as day=*")
    if settings.root.exists() and not settings.root.is_dir():
        raise UserError(f"{file}: root={settings.root}: is a file; name a folder, which is created")
    return settings
