"""List the items most like an item, with a run's retrieval model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import torch

from recsys.base.errors import UserError
from recsys.data.features.row_sources import slices
from recsys.index.cosines import Cosines
from recsys.index.protocol import equal_rows
from recsys.interface.batch import CandidateIds, ItemLists, ItemRows
from recsys.online.queries import named_items
from recsys.online.query_parameters import NOT_RELATED, unknown_candidates, unknown_item
from recsys.online.recommender import Recommender, top_k


def similar_items(
    recommender: Recommender,
    items: Sequence[object],
    k: int = 10,
    *,
    exclude: Sequence[object] = (),
    candidates: Sequence[object] | None = None,
) -> pl.DataFrame:
    """Return a row for each item: itself, named as its column, and the items most like it, `items` and `scores`.

    Those are the items whose vectors have the largest cosine with its own or, for a model that is fitted in closed
    form, those with the highest scores for a history of the item alone: the weights of item_knn, ease and slim.

    Args:
        items: items that the model has learned.
        k: length of the lists.
        exclude: items that are left out.
        candidates: the only items that are listed; None for all.

    Raises:
        UserError: the model has not learned an item, or does not say which items are alike.
    """
    if not items:
        raise UserError("item: names no item; write item=ID, or several: item=[ID,ID]")
    if candidates is not None and not candidates:
        raise UserError("candidates: names no item; leave it out to list all items")
    fitted, nameable = recommender.fitted, recommender.nameable
    column = fitted.data.sparse_columns[fitted.data.item_feature or ""].column

    def ids_of(given: Sequence[object]) -> np.ndarray:
        texts = [recommender.rows.key_of(column, item) for item in given]
        ids = fitted.candidate_ids(pl.Series(texts, dtype=pl.String)).to_numpy()
        return np.where(ids <= nameable, ids, 0)

    k, relate, ids = recommender.length(k), _relations(recommender), ids_of(items)
    if not ids.all():
        raise unknown_item(items[int(ids.argmin())], named_items(fitted, np.array([1]), recommender.item).to_list())
    allowed = np.full(1 + nameable, candidates is None)
    if candidates is not None:
        allowed[ids_of(candidates)] = True
        if not allowed[1:].any():
            raise unknown_candidates(candidates)
    allowed[[0, *ids_of(exclude)]] = False
    places, best = [], []
    for id_ in ids:
        scores = relate(id_)[: 1 + nameable].astype(np.float32)
        listed = allowed & ~np.isnan(scores)
        listed[id_] = False
        columns, highest = top_k(torch.from_numpy(np.where(listed, scores, -np.inf))[None], k)
        kept = (highest[0] > -torch.inf).numpy()
        places.append(columns[0].numpy()[kept])
        best.append(highest[0].numpy()[kept])
    stops = np.cumsum([len(x) for x in best])
    starts = np.concatenate([[0], stops[:-1]])
    listed_items = named_items(fitted, np.concatenate(places), recommender.item)
    return pl.DataFrame(
        {
            column: named_items(fitted, ids, recommender.item),
            "items": slices(listed_items, starts, stops),
            "scores": slices(pl.Series(np.concatenate(best)), starts, stops),
        }
    )


def _relations(recommender: Recommender) -> Callable[[int], np.ndarray]:
    """Return how like an item all candidates are, (N,), from its id. Raises UserError if the model does not say."""
    if recommender.items is not None:
        vectors = recommender.items.numpy()
        return Cosines(vectors, equal_rows(vectors))
    model = recommender.model
    if not model.relates_items:
        raise UserError(NOT_RELATED)

    def scores_alone(id_: int) -> np.ndarray:
        with torch.no_grad():
            history = ItemLists(ItemRows(CandidateIds(torch.tensor([int(id_)]))), torch.tensor([1]))
            scores: np.ndarray = model.score(history)[0].numpy()
        return scores

    return scores_alone
