"""Recommend the k best items for each group from its history, with a retrieval model.

    recommender = Recommender.load("outputs/my_run")
    recommender.recommend(histories, k=20)              # raw rows in; items and scores of each group out

Queries are made by the same code as in evaluation (`group_features.next_item_queries`) and are ranked against the same
candidates. `python -m recsys.predict run=RUN_DIR input=FILES output=top.parquet k=20` does this for files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.base.console import bar, say, say_once
from recsys.base.errors import UserError
from recsys.data.features.blocks import GROUP
from recsys.index.protocol import equal_rows, highest
from recsys.online.queries import answers, in_batches
from recsys.online.unknown_values import UnknownValues

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.data.features.blocks import BadRow
    from recsys.interface.batch import Batch
    from recsys.job.run_config import RunConfig
    from recsys.online.raw_rows import RawRows

BLOCK = 2**24  # maximum number of scores in memory

ScoreRows = Callable[[int, int], Tensor]  # (start, stop) -> scores (stop - start, N) of these rows of a batch
# score_batch, nameable, items and model of a Recommender
Loaded = tuple[Callable[["Batch"], ScoreRows], int, Tensor | None, Any]


@dataclass
class Recommender:
    """A run's retrieval model and its fitted transforms, loaded into memory.

    rows: computes features from raw rows
    score_batch: takes a batch of queries and returns a function that scores all N candidates for some of them
    nameable: the model has separate scores for candidates 1 ... nameable only
    key, item: types of the groups' keys and of the items, text unless the raw files have another type
    k, filter_history: defaults, from the run's config
    items: the vectors of all candidates (N, d), if the model has some
    model: the model, if it was fitted in closed form
    """

    rows: RawRows
    score_batch: Callable[[Batch], ScoreRows]
    nameable: int
    key: pl.DataType
    item: pl.DataType
    k: int
    filter_history: bool
    batch_size: int
    items: Tensor | None = None
    model: Any = None

    def __post_init__(self) -> None:
        self._said: set[str] = set()  # features of whose unknown values a line was printed

    @property
    def fitted(self) -> Fitted:
        return self.rows.fitted

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Recommender:
        """Load from a run's folder. Raises UserError if the run's model is not a retrieval model."""
        from recsys.online.raw_rows import RawRows
        from recsys.training.run_dir import choose_checkpoint, open_run

        cfg, path = open_run(run)
        if cfg.kind.scores_rows:
            raise UserError(
                f"run={run}: its model scores rows and cannot retrieve items; use recsys.online.predictor.Predictor"
            )
        rows = RawRows.load(path)
        data, name = rows.fitted.data, rows.fitted.data.item_feature
        assert data.group is not None and name is not None
        load = _closed_form if cfg.kind.fitted_at_once else _trained
        score_batch, nameable, items, model = load(cfg, rows.fitted, choose_checkpoint(path, checkpoint))
        return cls(
            rows,
            score_batch,
            nameable,
            rows.types.get(data.group.by, pl.String()),
            rows.types.get(data.sparse_columns[name].column, pl.String()),
            min(max(cfg.protocol.k), nameable),
            bool(cfg.protocol.filter_history),
            cfg.trainer.eval_batch_size,
            items,
            model,
        )

    def recommend(
        self,
        raw: pl.DataFrame,
        k: int | None = None,
        *,
        filter_history: bool | None = None,
        allow_unknown: bool = False,
    ) -> pl.DataFrame:
        """Return one row for each group, in the order of their first rows.

        Its columns are the group's key (named as data.group.by), items and scores. Each list is sorted by descending
        score; among equal scores, the item that was more frequent in training comes first. A list is shorter than k if
        fewer candidates can be scored.

        Args:
            raw: the history of the groups, with columns as `Predictor.predict` takes them; rows that cannot be read and
                rows that data.where filters out are left out. A group of which only attributes are known has one row,
                whose item is missing.
            k: length of the lists; by default the largest k of the run's protocol.
            filter_history: whether to leave out the items of the history; by default, the run's
                protocol.filter_history.
            allow_unknown: whether nearly all items of the histories may be unknown, which is an error otherwise.
        """
        rows, _ = self.rows.parse_frame(raw, past=True)
        self.check_items(rows, allow_unknown)
        answers = list(self.answers(rows, self.length(k), filter_history))
        if answers:
            self.say_cold(sum(cold for _, cold in answers), sum(frame.height for frame, _ in answers))
            return pl.concat([frame for frame, _ in answers])
        nothing = torch.zeros(0, 1)
        return self._named(pl.Series([], dtype=pl.String), nothing.long(), nothing)

    def recommend_to(self, user: object, files: list[Path], k: int | None = None) -> pl.DataFrame:
        """Return the best items of one group, best first, in the columns `item` and `score`.

        Raises UserError if the group has no row.

        Args:
            user: the group's key, a value of data.group.by.
            files: raw files with the group's history.
            k: number of items; by default the largest k of the run's protocol.
        """
        k, data = self.length(k), self.fitted.data
        assert data.group is not None
        found, example = [], ""
        key = self.rows.key_of(data.group.by, user)
        for frame, _ in self.read(files):
            found.append(frame.filter(pl.col(GROUP) == key))
            example = example or next((f'; keys look like "{key}"' for key in frame[GROUP].head(1)), "")
        rows = pl.concat(found)
        if rows.is_empty():
            where = f"{files[0]}{', ...' if len(files) > 1 else ''}"
            raise UserError(f"user={user}: no row has this {data.group.by} in {where}{example}")
        [(lists, cold)] = self.answers(rows, k)
        self.say_cold(cold, 1)
        return lists.drop(data.group.by).explode("items", "scores").rename({"items": "item", "scores": "score"})

    def check_items(self, rows: pl.DataFrame, allow_unknown: bool) -> None:
        """Say how many items of histories are unknown; UserError if nearly all are. rows: parsed rows"""
        item = self.fitted.data.item_feature or ""
        unknown = UnknownValues(self.fitted, allow_unknown)
        unknown.add(rows, {item: self.fitted.candidate_ids(rows[item])})
        unknown.check(self._said)

    @staticmethod
    def say_cold(cold: int, groups: int) -> None:
        """Say how many groups have no known item, if any."""
        if cold:
            say(f"{cold:,} of {groups:,} groups have no known item in their history, and get the list of such groups")

    def read(self, files: list[Path]) -> Iterator[tuple[pl.DataFrame, list[BadRow]]]:
        """Yield blocks of the files' rows, and of their bad rows. Raises UserError for a missing column."""
        from recsys.data.features import parse_rows
        from recsys.data.features.blocks import BadRow
        from recsys.data.raw import read_sources

        raw = self.rows
        data, refused = read_sources.history_config(self.fitted.data), list[BadRow]()
        sources_of = [(file, read_sources.prediction_source(data, file)) for file in files]
        for file, source in sources_of:
            read_sources.check_columns(source, file, raw.raw.sides, raw.types)
        with bar("reading", unit="rows") as shown:
            for file, source in sources_of:

                def complete(frame: pl.DataFrame, file: Path = file) -> pl.DataFrame:
                    return raw.keep_history(raw.complete_file(frame, file, refused))

                for block in read_sources.read_blocks(source, file, complete=complete):
                    frame, bad = parse_rows(source, block, labelled=False)
                    shown.advance(frame.height)
                    yield frame, sorted(bad + refused, key=lambda b: b.line)
                    refused.clear()

    def length(self, k: int | None) -> int:
        """Return k, or the run's k if it is None, at most the number of items. Raises UserError for one below 1."""
        if k is None:
            return self.k
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        if k > self.nameable:
            say_once(f"k={k}: the model can rank {self.nameable:,} items, so that no list is longer")
        return min(k, self.nameable)

    def answers(
        self, rows: pl.DataFrame, k: int, filter_history: bool | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[pl.DataFrame, int]]:
        """Yield the data frame that `recommend` returns and the number of groups without a known item, in batches.

        Args:
            rows: raw rows of the histories.
            k: number of items of each group.
            filter_history: whether to leave out the items of a group's history; None for the run's own setting.
            batch_size: groups of a batch; None for the run's trainer.eval_batch_size.
        """
        from recsys.data.features.batch_tensors import RowTensors
        from recsys.interface.batch import CandidateIds, CandidateLists

        left_out = self.filter_history if filter_history is None else filter_history
        features = self.fitted.features
        for queries in in_batches(self.fitted, rows, batch_size or self.batch_size):
            # as the evaluation loader makes it, with the known items of each history
            labels = np.zeros((queries.arrays.rows, len(features.labels)), np.float32)
            batch = RowTensors.from_arrays(queries.arrays, features).batch(labels)
            known = CandidateIds(torch.from_numpy(queries.history))
            batch.history = CandidateLists(known, torch.from_numpy(queries.lengths))
            ids, scores = self._best(batch, k, left_out)
            yield self._named(queries.groups, ids, scores), int((queries.lengths == 0).sum())

    def _best(self, batch: Batch, k: int, filter_history: bool) -> tuple[Tensor, Tensor]:
        """Return (B, k) candidates and their scores, -inf where there is no candidate."""
        assert batch.history is not None
        ids, best = [], []
        with torch.no_grad():
            score_rows = self.score_batch(batch)
            step = max(1, BLOCK // (1 + self.nameable))
            for start in range(0, batch.rows, step):
                stop = min(start + step, batch.rows)
                scores = score_rows(start, stop)[:, 1 : 1 + self.nameable].clone()
                scores[scores.isnan()] = -torch.inf
                if filter_history:
                    known = batch.history.slice(start, stop)
                    inside = known.values <= self.nameable
                    scores[known.segment_ids[inside], known.values[inside] - 1] = -torch.inf
                columns, highest = top_k(scores, k)
                ids.append(columns + 1)
                best.append(highest)
        return torch.cat(ids), torch.cat(best)

    def _named(self, groups: pl.Series, ids: Tensor, scores: Tensor) -> pl.DataFrame:
        return answers(self.fitted, groups, ids.numpy(), scores.numpy(), key=self.key, item=self.item)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the columns and values (B, k) of the k highest of (B, N) scores, in descending order.

    Unlike torch.topk, equal scores are ordered by ascending column.
    """
    places = torch.from_numpy(highest(scores.numpy(), k))
    best, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return places.gather(1, order), best


def _trained(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> Loaded:
    """Return a function that scores with the model's queries and item vectors, the number of items, and the vectors."""
    from recsys.training.trainer import restored_module

    module = restored_module(cfg, fitted, checkpoint)
    task = module.sharded.task
    n = len(task.candidates)
    items = task.item_vectors(range(n), n).float()

    def score_batch(batch: Batch) -> ScoreRows:
        _, queries = module.dmp(batch)  # type: ignore[misc]

        def score(start: int, stop: int) -> Tensor:
            scores: Tensor = task.scorer.score_all(queries[start:stop].float(), items)
            scores[:, later] = scores[:, first]
            return scores

        return score

    later, first = equal_rows(items.numpy())
    listed = n if task.model.ranks_new_items else min(task.model.items.rows, n)
    return score_batch, listed - 1, items, None


def _closed_form(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> Loaded:
    """Return a function that scores from the history alone, the number of items, and the model."""
    from recsys.training import fitted_retrieval

    model = fitted_retrieval.load(cfg, fitted, checkpoint)

    def score_batch(batch: Batch) -> ScoreRows:
        assert batch.history is not None
        score = fitted_retrieval.scores(model, batch.history, model.rows)
        return lambda start, stop: score(torch.arange(start, stop), 0, model.rows)

    return score_batch, model.rows - 1, None, model


def recommend_files(
    run: str,
    files: list[Path],
    output: Path,
    *,
    checkpoint: str,
    k: int | None,
    filter_history: bool | None,
    batch_size: int,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Recommend items for the groups in all files (a group's rows may be in several) and write one Parquet file.

    All rows are held in memory, but not all scores. Returns k, the number of groups, the number of groups without a
    known item (cold), and the number of bad rows.

    Args:
        run: folder of the run.
        files: the raw files.
        output: the Parquet file to write.
        checkpoint: best, last or the name of a checkpoint.
        k: number of items of each group; None for the largest k of the run's metrics.
        filter_history: whether to leave out the items of a group's history; None for the run's own setting.
        batch_size: groups that are scored at a time.
        allow_unknown: whether nearly all items of the histories may be unknown.
    """
    from recsys.data.prepare.writer import Output

    out = Output(output)
    recommender = Recommender.load(run, checkpoint)
    k = recommender.length(k)
    frames = []
    for frame, bad in recommender.read(files):
        frames.append(frame)
        out.keep(bad)
    rows = pl.concat(frames)
    if rows.is_empty():
        left_out = recommender.fitted.data.where is not None and not out.bad
        raise UserError(f"input: {'data.where filters out all rows' if left_out else out.without_rows()}")
    recommender.check_items(rows, allow_unknown)
    groups = cold = 0
    with out, bar("recommending", unit="groups") as shown:
        for frame, without in recommender.answers(rows, k, filter_history, batch_size):
            out.write(frame)
            groups, cold = groups + frame.height, cold + without
            shown.advance(frame.height)
    recommender.say_cold(cold, groups)
    return {"k": k, "groups": groups, "cold": cold, "bad_rows": out.bad, "bad_rows_file": str(out.bad_rows)}
