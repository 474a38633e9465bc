"""The k best items for each group, from what it did so far, by a model that retrieves.

    recommender = Recommender.load("outputs/my_run")
    recommender.recommend(pl.DataFrame(...), k=20)      # raw rows in; of each group, items and scores

Queries are made by the code that makes those of held-out rows (`arrange.questions`), and ranked against the same
candidates. `python -m recsys.predict run=RUN_DIR input=FILES output=top.parquet k=20` does it for files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.console import bar
from recsys.errors import UserError

if TYPE_CHECKING:
    from recsys.batch import Batch
    from recsys.data.transforms import Fitted

BLOCK = 2**24  # scores that exist at once

Rate = Callable[[int, int], Tensor]  # (start, stop) -> scores of these rows of a batch, (stop - start, N)


@dataclass
class Recommender:
    """A run's model and transforms, in this process.

    rater: of a batch of queries, their scores of all N candidates
    nameable: candidates from 1 on that the model tells apart
    key, item: types of the group's and the items' values, text unless the raw files had another one
    k, filter_history: as the run was ranked
    """

    fitted: Fitted
    rater: Callable[[Batch], Rate]
    nameable: int
    key: pl.DataType
    item: pl.DataType
    k: int
    filter_history: bool
    batch_size: int

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Recommender:
        """From a run's folder. Raises UserError where its model retrieves nothing."""
        from recsys.config.kinds import kind_of
        from recsys.data.transforms import Fitted, item_feature, sparse_columns
        from recsys.data.transforms.fitted import RAW_SCHEMA
        from recsys.training.run_dir import choose_checkpoint, open_run

        cfg, path = open_run(run)
        kind = kind_of(cfg)
        if kind.scores_rows:
            raise UserError(f"run={run}: its model scores rows, and retrieves no items; use recsys.predict.Predictor")
        fitted = Fitted.load(path)
        data, name = fitted.data, item_feature(fitted.data)
        assert data.group is not None and name is not None
        types = pl.read_parquet_schema(path / RAW_SCHEMA) if (path / RAW_SCHEMA).is_file() else {}
        of = _closed_form if kind.fitted_at_once else _trained
        rater, nameable = of(cfg, fitted, choose_checkpoint(path, checkpoint))
        return cls(
            fitted,
            rater,
            nameable,
            types.get(data.group.by, pl.String()),
            types.get(sparse_columns(data)[name].column or name, pl.String()),
            min(max(cfg.protocol.k), nameable),
            bool(cfg.protocol.filter_history),
            cfg.trainer.eval_batch_size,
        )

    def recommend(self, raw: pl.DataFrame, k: int | None = None, *, filter_history: bool | None = None) -> pl.DataFrame:
        """A row a group, in the order of their first rows: its key (named as data.group.by), items and scores.

        raw: what the groups did so far, as in the raw files; rows that cannot be read are left out.

        Lists fall by score; of equal scores the item that was more frequent in training comes first. They are shorter
        than k where fewer candidates can be scored. k, filter_history: by default as the run was ranked.
        """
        from recsys.data.raw.sources import block_from_frame, history_config
        from recsys.data.transforms import parse_rows

        data = history_config(self.fitted.data)
        rows, _ = parse_rows(data, block_from_frame(data, raw))
        answers = [frame for frame, _ in self.answers(rows, self.length(k), filter_history)]
        if answers:
            return pl.concat(answers)
        nothing = torch.zeros(0, 1)
        return self._named(pl.Series([], dtype=pl.String), nothing.long(), nothing)

    def length(self, k: int | None) -> int:
        """k, checked. Raises UserError."""
        if k is None:
            return self.k
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        if k > self.nameable:
            raise UserError(f"k={k}: there are {self.nameable:,} items to choose from; ask for no more")
        return k

    def answers(
        self, rows: pl.DataFrame, k: int, filter_history: bool | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[pl.DataFrame, int]]:
        """Typed rows -> what `recommend` gives, some groups at a time, and how many of them have no known item."""
        from recsys.data.group_features import next_item_queries
        from recsys.data.transforms import GROUP

        left_out = self.filter_history if filter_history is None else filter_history
        size, number = batch_size or self.batch_size, "__number__"
        groups = rows.select(GROUP).unique(maintain_order=True).with_row_index(number)
        rows = rows.join(groups, on=GROUP, how="left", maintain_order="left").sort(number, maintain_order=True)
        bounds = np.searchsorted(rows[number].to_numpy(), np.arange(0, groups.height + size, size))
        for start, stop in pairwise(bounds):
            asked = next_item_queries(self.fitted.data, rows[int(start) : int(stop)].drop(number))
            batch = self._batch(asked)
            ids, scores = self._best(batch, k, left_out)
            cold = 0 if batch.history is None else int((batch.history.lengths == 0).sum())
            yield self._named(asked[GROUP], ids, scores), cold

    def _batch(self, asked: pl.DataFrame) -> Batch:
        """Queries as evaluation's loader makes them: features, and all that came before as known candidates."""
        from recsys.batch import JaggedIds, segment_ids_of
        from recsys.data.loader import batch_of
        from recsys.data.transforms import HISTORY, TARGETS

        fitted = self.fitted
        batch = batch_of(fitted.apply(asked.drop(HISTORY, TARGETS)), fitted.features, fitted.matrices)
        lists = asked[HISTORY]
        ids = fitted.candidate_ids(lists.explode(empty_as_null=False, keep_nulls=False)).to_numpy()
        lengths = torch.from_numpy(lists.list.len().to_numpy().astype(np.int64))
        values = torch.from_numpy(ids.astype(np.int64))
        known = values > 0
        segment_ids = segment_ids_of(lengths)[known]
        batch.history = JaggedIds(values[known], torch.bincount(segment_ids, minlength=len(lengths)))
        return batch

    def _best(self, batch: Batch, k: int, filter_history: bool) -> tuple[Tensor, Tensor]:
        """(B, k) candidates and their scores, -inf where there is none."""
        assert batch.history is not None
        ids, best = [], []
        with torch.no_grad():
            rate = self.rater(batch)
            step = max(1, BLOCK // (1 + self.nameable))
            for start in range(0, batch.rows, step):
                stop = min(start + step, batch.rows)
                scores = rate(start, stop)[:, 1 : 1 + self.nameable].clone()
                scores[scores.isnan()] = -torch.inf
                if filter_history:
                    had = batch.history.slice(start, stop)
                    inside = had.values <= self.nameable
                    scores[had.segment_ids[inside], had.values[inside] - 1] = -torch.inf
                some, their = top_k(scores, k)
                ids.append(some + 1)
                best.append(their)
        return torch.cat(ids), torch.cat(best)

    def _named(self, groups: pl.Series, ids: Tensor, scores: Tensor) -> pl.DataFrame:
        from recsys.data.group_features import slices
        from recsys.data.raw.formats import LIST

        assert self.fitted.data.group is not None
        by = self.fitted.data.group.by
        if by == LIST:  # FILE:FIRST BYTE OF THE PIECE:LINE
            groups = groups.str.replace(r":\d+:(\d+)$", ":$1")
        there = scores > -torch.inf
        stops = there.sum(1).cumsum(0).numpy()
        starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
        names = self.fitted.candidates.gather((ids[there] - 1).numpy())
        return pl.DataFrame(
            {
                by: _cast(groups, self.key),
                "items": slices(_cast(names, self.item), starts, stops),
                "scores": slices(pl.Series(scores[there].numpy()), starts, stops),
            }
        )


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, N) -> (B, k) places and scores, falling; of equal scores the lower place first, which topk leaves open."""
    least = torch.topk(scores, k, dim=1).values[:, -1:]
    above, equal = scores > least, scores == least
    kept = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True)))
    places = kept.nonzero()[:, 1].view(-1, k)
    best, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return places.gather(1, order), best


def _cast(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Text as the type it has in the raw files, where all of it can be."""
    try:
        return values.cast(dtype)
    except pl.exceptions.InvalidOperationError:
        return values


def _trained(cfg: Any, fitted: Fitted, checkpoint: Path) -> tuple[Callable[[Batch], Rate], int]:
    """By the model's queries and its items as vectors, which are worked out once."""
    from recsys.models.common.items import Items
    from recsys.training.trainer import restored_module

    module = restored_module(cfg, fitted, checkpoint)
    assert module.dmp is not None
    task = module.dmp.module
    n = len(task.candidates)
    items = task.item_vectors(range(n), n).float()
    alone = all(m.by_id_alone for m in task.modules() if isinstance(m, Items))

    def rater(batch: Batch) -> Rate:
        _, queries = module.dmp(batch)  # type: ignore[misc]
        return lambda start, stop: task.scorer.score_all(queries[start:stop].float(), items)

    return rater, min(task.model.items.rows if alone else len(items), len(items)) - 1


def _closed_form(cfg: Any, fitted: Fitted, checkpoint: Path) -> tuple[Callable[[Batch], Rate], int]:
    """By the history alone."""
    from recsys.training import closed_form

    model = closed_form.load(cfg, fitted, checkpoint)

    def rater(batch: Batch) -> Rate:
        assert batch.history is not None
        score = closed_form.scores(model, batch.history, model.rows)
        return lambda start, stop: score(torch.arange(start, stop), 0, model.rows)

    return rater, model.rows - 1


def recommend_files(
    run: str,
    files: list[Path],
    output: Path,
    *,
    checkpoint: str,
    k: int | None,
    filter_history: bool | None,
    batch_size: int,
) -> dict[str, Any]:
    """The rows of all files, which a group may be spread over -> one Parquet file, as `Recommender.recommend` gives.

    Rows are held in memory, scores are not. Returns k, and how many groups there are, how many of them have no known
    item (cold), and how many bad rows.
    """  # fmt: skip
    from recsys.data.prepare.writer import Output
    from recsys.data.raw import sources
    from recsys.data.transforms import parse_rows

    out = Output(output)
    recommender = Recommender.load(run, checkpoint)
    k = recommender.length(k)
    data = sources.history_config(recommender.fitted.data)
    sources_of = [(file, sources.prediction_source(data, file)) for file in files]
    for file, source in sources_of:
        sources.check_columns(source, file, labelled=False)
    frames = []
    with bar("reading", unit="rows") as shown:
        for file, source in sources_of:
            for block in sources.read_blocks(source, file):
                frame, bad = parse_rows(source, block, labelled=False)
                frames.append(frame)
                out.keep(bad)
                shown.advance(frame.height)
    rows = pl.concat(frames)
    if rows.is_empty():
        told = f"none of {out.bad} rows can be read; see {out.bad_rows}" if out.bad else "no row is left by data.where"
        raise UserError(f"input: {told}")
    groups = cold = 0
    with bar("recommending", unit="groups") as shown:
        for frame, without in recommender.answers(rows, k, filter_history, batch_size):
            out.write(frame)
            groups, cold = groups + frame.height, cold + without
            shown.advance(frame.height)
    out.close()
    return {"k": k, "groups": groups, "cold": cold, "bad_rows": out.bad, "bad_rows_file": str(out.bad_rows)}
