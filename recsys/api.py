"""What people do with recsys from Python, in a line each.

import recsys

run = recsys.train(["model=dlrm", "data=criteo"])       # or recsys.load("outputs/my_run")
run = recsys.train(["model=dlrm"], rows=frame)          # or rows=recsys.new(frame, label="clicked")
run.metrics["test"]["auc"]
run.predict(frame)
recsys.recommend("outputs/my_sequences", user=42, k=10)
recsys.similar("outputs/my_sequences", item=7, k=10)
run.export("exported/a")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from recsys.base.errors import UserError
from recsys.training.run import Run

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from omegaconf import DictConfig

    from recsys.new.write_config import FrameData
    from recsys.online.predictor import Predictor
    from recsys.online.recommender import Recommender
    from recsys.stages.staged import StagedRecommender


def train(overrides: Sequence[str] = (), rows: object = None) -> TrainedRun:
    """Prepare the data, train, test, and return the run.

    Args:
        overrides: what you would type after `python -m recsys.train`, such as ["model=dcnv2", "data=criteo"].
        rows: a data frame of polars or pandas to train on, instead of files, or what `recsys.new` found in one. With
            `data=NAME`, its columns are read as that YAML says; otherwise as `recsys.new` proposes. The rows are
            written once, to outputs/frames/.

    Raises:
        UserError: the config or the data has a mistake, or the frame leaves a question open.
    """
    from recsys.base.metrics_page import heard
    from recsys.job.config_of import config_of
    from recsys.training.run import train

    overrides = overrides.split() if isinstance(overrides, str) else [*overrides]
    if rows is not None:
        overrides = _frame_overrides(rows, overrides)
    with heard(composed := _composed("train", overrides)):
        return TrainedRun(train(config_of(overrides, composed)).path)


def new(
    rows: object,
    label: str | None = "auto",
    user: str | None = "auto",
    item: str | None = "auto",
    time: str | None = "auto",
    positive: str | Sequence[str] | None = "auto",
    *,
    yes: bool = False,
) -> FrameData:
    """Look at a data frame, and return the config of its data set, with its reasons and what it leaves open.

    Args:
        rows: a data frame of polars or pandas.
        label, user, item, time: names of columns, None for no such column, auto to find it.
        positive: the value, or values, of the label that are positive; None makes each value a class.
        yes: take the likeliest answers to what the frame leaves open.

    Raises:
        UserError: nothing in the frame can be learned; the message asks for what is missing.
    """
    from recsys.new.questions import Answers
    from recsys.new.write_config import look_at

    values = (positive,) if isinstance(positive, str) and positive != "auto" else positive
    chosen = tuple(map(str, values)) if isinstance(values, Sequence) and values != "auto" else values
    return look_at(_polars(rows), Answers(label, user, item, time, chosen, sure=yes))


def _frame_overrides(rows: object, overrides: list[str]) -> list[str]:
    """Return the overrides with the data set of a frame."""
    from recsys.new.write_config import FrameData, stored

    keys = {o.partition("=")[0] for o in overrides}
    if "data" in keys and not isinstance(rows, FrameData):
        folder = stored(_polars(rows))
        return [*overrides, f"data.root='{folder}'", "data.source.format=parquet", "data.source.files=[rows.parquet]"]
    if "data" in keys:
        raise UserError("data: rows= is what recsys.new found, with a config of its own; leave data= out")
    found = rows if isinstance(rows, FrameData) else new(rows)
    if found.questions and not found.sure:
        q = found.questions[0]
        hint = f"recsys.new(rows, ...) with {' or '.join([*q.answers, 'yes=True'])}"
        raise UserError(f"rows: {q.text}; the guess is {q.guess}; pass {hint}")
    return [*overrides, *found.overrides()]


def load(run: str | Path) -> TrainedRun:
    """Return a trained run. Raises UserError if the folder holds no run.

    Args:
        run: the run's folder, or the address of its mirror, such as s3://bucket/run.
    """
    from recsys.job.fetched_runs import local_run
    from recsys.training.run_dir import open_run

    return TrainedRun(open_run(str(local_run(run)))[1])


def recommend(
    run: str | Path | TrainedRun, user: object, k: int = 10, *, items: str | Path | None = None
) -> pl.DataFrame:
    """Return the k best items for one user, best first, in the columns `item` and `score`.

    The history of the user is read from the raw files that the run was trained on.

    Args:
        run: a run of a retrieval model, its folder, or the address of its mirror.
        user: the user's key, a value of the column `data.group.by`.
        k: number of items.
        items: a file with new items, which are candidates beside the run's.
    """
    with _with_items(run, items) as found:
        return found.recommend(user=user, k=k)


def similar(
    run: str | Path | TrainedRun,
    item: object,
    k: int = 10,
    *,
    exclude: Sequence[object] = (),
    candidates: Sequence[object] | None = None,
    items: str | Path | None = None,
) -> pl.DataFrame:
    """Return the k items most like one item, best first, in the columns `item` and `score`.

    For a list of items, return a row for each, with its `items` and `scores`.

    Args:
        run: a run of a retrieval model, its folder, or the address of its mirror.
        item: an item of the training rows, or a list of them.
        k: number of items.
        exclude: items that are left out.
        candidates: the only items that are listed; None for all.
        items: a file with new items, which are candidates beside the run's.
    """
    from recsys.online.similar_items import similar_items

    with _with_items(run, items) as opened:
        recommender = opened.recommender
    if isinstance(item, Iterable) and not isinstance(item, str):
        return similar_items(recommender, [*item], k, exclude=exclude, candidates=candidates)
    found = similar_items(recommender, [item], k, exclude=exclude, candidates=candidates)
    return found.select(item=found["items"].explode(), score=found["scores"].explode())


@contextmanager
def _with_items(run: str | Path | TrainedRun, items: str | Path | None) -> Iterator[TrainedRun]:
    """Yield a run, with the items of a file beside its own if there is one."""
    if items is None:
        yield run if isinstance(run, TrainedRun) else load(run)
        return
    from recsys.online.new_items import run_with_items

    with run_with_items(str(run.path if isinstance(run, TrainedRun) else run), str(items)) as grown:
        yield load(grown)


def open_pipeline(file: str | Path, overrides: Sequence[str] = ()) -> StagedRecommender:
    """Load a pipeline of stages. `explain` of the result shows what each stage makes of a request.

    Args:
        file: the YAML of the pipeline.
        overrides: what you would type after `python -m recsys.pipeline run=FILE`, such as ["root=outputs"].

    Raises:
        UserError: the file, a model or a table has a mistake.
    """
    from recsys.config.compose import check_pipeline_file, compose_file
    from recsys.stages.assemble import load

    check_pipeline_file(Path(file))
    return load(compose_file(Path(file), list(overrides)))


class TrainedRun(Run):
    """A trained run: its folder (`path`), its `metrics`, and what you can do with its model."""

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.path)!r})"

    @cached_property
    def predictor(self) -> Predictor:
        """The ranking model and its transforms, loaded once."""
        from recsys.online.predictor import Predictor

        return Predictor.load(str(self.path))

    @cached_property
    def recommender(self) -> Recommender:
        """The retrieval model and its transforms, loaded once."""
        from recsys.online.recommender import Recommender

        return Recommender.load(str(self.path))

    def predict(self, rows: object, *, allow_unknown: bool = False) -> Any:
        """Return the predictions for raw rows: a Series, or a data frame if the run predicts several numbers a row.

        Args:
            rows: a data frame of polars or pandas, whose columns are named as in the raw files. The result is of the
                same library, with the frame's index.
            allow_unknown: whether nearly all values of a column may be ones that the training rows do not hold, which
                is an error otherwise.
        """
        predictions = _like(rows, self.predictor.predict(_polars(rows), allow_unknown=allow_unknown))
        return predictions.set_axis(rows.index) if _is_of_pandas(rows) else predictions

    def recommend(
        self, rows: object = None, *, user: object = None, k: int | None = None, allow_unknown: bool = False
    ) -> Any:
        """Return the best items for one user, or the lists of items for all users in a data frame.

        Args:
            rows: histories, a data frame of polars or pandas; the result has a row for each user.
            user: the user's key; the history is then read from the raw files of the run.
            k: number of items; by default the largest k of the run's protocol.
            allow_unknown: whether nearly all items of `rows` may be unknown, which is an error otherwise.
        """
        if (rows is None) == (user is None):
            raise UserError("recommend: give either rows, a data frame of histories, or user, the key of one user")
        if rows is not None:
            return _like(rows, self.recommender.recommend(_polars(rows), k, allow_unknown=allow_unknown))
        from recsys.data.prepare.plan_build import raw_files
        from recsys.training.run_dir import open_run

        return self.recommender.recommend_to(user, raw_files(open_run(str(self.path))[0].data), k)

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Return the metrics of the best checkpoint on a split: train, validation or test."""
        from recsys.training.evaluate_run import evaluate

        return dict(evaluate(str(self.path), split)[split])

    def export(self, output: str | Path, overrides: Sequence[str] = ()) -> Path:
        """Write the folder that `python -m recsys.serve` serves, and return its path.

        Args:
            output: the folder to write.
            overrides: further overrides of `python -m recsys.export`, such as ["tables=int8"].
        """
        from recsys.config.compose import object_of
        from recsys.export.__main__ import write
        from recsys.schema.command_schemas import ExportConfig

        cfg = _composed("export", ["run=run", "output=output", *overrides])
        cfg.run, cfg.output = str(self.path), str(output)
        write(object_of(ExportConfig, cfg))
        return Path(output)

    def report(self, output: str | Path = "report.html", others: Sequence[str | Path | Run] = ()) -> Path:
        """Write the page that compares this run with others, and return its path."""
        from recsys.report.__main__ import report
        from recsys.schema.command_schemas import ReportConfig

        folders = [r.path if isinstance(r, Run) else r for r in (self, *others)]
        report(ReportConfig(runs=[str(f) for f in folders], output=str(output)))
        return Path(output)


def _composed(command: str, overrides: Sequence[str]) -> DictConfig:
    """Return the config of a command. Raises UserError, without the frames of Hydra, if an override is wrong."""
    from recsys.cli.command_line import explained
    from recsys.config.compose import compose

    try:
        with explained(overrides, command):
            return compose(command, list(overrides))
    except UserError as e:
        raise e.with_traceback(None) from None


def _polars(rows: object) -> pl.DataFrame:
    import polars as pl

    if isinstance(rows, pl.DataFrame):
        return rows
    if isinstance(rows, pl.LazyFrame):
        return rows.collect()
    if _is_of_pandas(rows):
        names = [str(name) for name in rows.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"rows: two columns are named {twice}; rename one of them, or drop it")
        return pl.DataFrame([_series(name, rows.iloc[:, i]) for i, name in enumerate(names)])
    if isinstance(rows, list | dict):
        return pl.DataFrame(rows)
    raise UserError(f"rows: must be a data frame of polars or pandas, not {type(rows).__name__}")


def _series(name: str, values: pd.Series) -> pl.Series:
    """Return a column of pandas; values of several types become text."""
    import polars as pl

    from recsys.files.text_values import text_of

    if len(values) == 0:
        return pl.Series(name, [], pl.Null)
    try:
        return pl.Series(name, pl.from_pandas(values, nan_to_null=True))
    except (TypeError, ValueError, NotImplementedError, pl.exceptions.PolarsError):  # also pyarrow's errors
        try:
            return pl.Series(name, [text_of(v) for v in values.astype(object).where(values.notna(), None)], pl.String)
        except ValueError as e:
            raise UserError(f"rows: column {name} holds values of several types, one of which {e}") from e


def _like(rows: object, result: Any) -> Any:
    return result.to_pandas() if _is_of_pandas(rows) else result


def _is_of_pandas(rows: object) -> TypeGuard[pd.DataFrame]:
    return type(rows).__module__.partition(".")[0] == "pandas"
