"""The prepared data of a run.

    RUN/data.json     the folder of the prepared data, and the digest of the content of the raw files

A run's tables and statistics belong to the raw files that it was trained on. If these have changed since, today's rows
are prepared with the run's own transforms.
"""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.fitted import TRANSFORMS, Fitted, is_fitted
from recsys.data.features.row_contents import targets
from recsys.data.prepare.check_data import SplitFiles
from recsys.data.prepare.engine import Engine
from recsys.data.prepare.passes import Build
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.prepared import Prepared, find_damage, finish
from recsys.files import manifest
from recsys.files.atomic import write_json
from recsys.files.manifest import UNREADABLE, DamagedFile, read_json
from recsys.files.run_files import DATA
from recsys.schema.data_schema import DataConfig
from recsys.training.run_dir import check_ids


@dataclass(frozen=True)
class RunData:
    """The data that a run was trained on. contents: digest of the content of the raw files."""

    prepared: Path
    contents: str

    @classmethod
    def load(cls, run: Path) -> "RunData | None":
        """Read data.json; None if the run was made before runs had one."""
        file = run / DATA
        if not file.exists():
            return None
        state = read_json(file, "prepared", "contents")
        if not isinstance(state["prepared"], str):
            raise DamagedFile(file, UNREADABLE)
        return cls(Path(state["prepared"]), str(state["contents"]))


def save(run: Path, prepared: Prepared) -> None:
    """Write data.json, unless the data was prepared before digests were kept."""
    if "contents" in prepared.info:
        state = {"prepared": str(prepared.folder.absolute()), "contents": prepared.info["contents"]}
        write_json(run / DATA, state)


def prepare_to_resume(
    run: Path, data: DataConfig, engine: Engine, files: SplitFiles | None, on_changed_data: bool
) -> Prepared:
    """Prepare the data that a run continues with.

    Raises:
        UserError: the raw files have changed since the run began, and `on_changed_data` is False.
    """
    then = RunData.load(run)
    build = plan_build(data, engine, files)
    if then is None or then.contents == build.contents:
        return _trained_on(run, build, then)
    if not on_changed_data:
        raise UserError(
            f"resume={run}: the raw files in data.root have changed since the run began; restore them, train a new "
            "run, or set resume_on_changed_data=true to go on with today's files and the run's transforms"
        )
    if encoded := targets(build.data):
        why = "rows that come again would see their own labels in the means that target has of the old files"
        hint = f"restore the files, or go on in a new run with start_from={run}"
        raise UserError(f"data.dense.{encoded[0]}: {why}; {hint}")
    say("the raw files have changed since the run began: going on with today's files and the run's transforms")
    return finish(build.with_transforms(run))


def prepare_to_measure(run: Path, data: DataConfig) -> Prepared:
    """Prepare the data that a run is measured on, and say so if it is not the data that the run was trained on.

    If the raw files are gone, it is the data that was prepared from them for training.
    """
    then = RunData.load(run)
    try:
        build = plan_build(data)
    except UserError as e:
        if then is None or not then.prepared.is_dir():
            raise
        if (damage := find_damage(then.prepared)) is not None:
            raise damage from e
        say(f"{e}; measuring on {then.prepared}, which was prepared for training")
        return Prepared(then.prepared)
    if then is None or then.contents == build.contents:
        return _trained_on(run, build, then)
    say("the raw files have changed since the run was trained: measuring on today's rows, with the run's transforms")
    return finish(build.with_transforms(run))


def prepare_to_start_from(start: Path, data: DataConfig, engine: Engine, files: SplitFiles | None) -> Prepared:
    """Prepare the data of a training that goes on from another run: new values are added to that run's vocabularies."""
    manifest.check(start, of=is_fitted)
    build, then = plan_build(data, engine, files), RunData.load(start)
    if then is not None and then.contents == build.contents:
        say(f"these are the rows that {start} was trained on: name new ones with data.root or data.source.files")
    prepared = finish(build.with_transforms(start, grows=True))
    before = Fitted.load(start).vocabularies
    for table, v in prepared.fitted.vocabularies.items():
        new = v.filter(pl.col("since") == prepared.fitted.trainings).height
        taken = new - (v.height - (before[table].height if table in before else 0))
        say(f"table {table}: {v.height + 1:,} rows, {new:,} new values" + (f", {taken:,} evicted" if taken else ""))
    return prepared


def _trained_on(run: Path, build: Build, then: RunData | None) -> Prepared:
    """Return the data that a run was trained on, whose raw files have not changed."""
    grown = bool(manifest.read_json(run / TRANSFORMS).get("trainings"))
    older = then is not None and then.prepared.name == build.older
    if not (grown or older):
        prepared = finish(build)
        check_ids(run, prepared)
        return prepared
    if then is not None and then.prepared.is_dir() and find_damage(then.prepared) is None:
        return Prepared(then.prepared)
    return finish(build.with_transforms(run))
