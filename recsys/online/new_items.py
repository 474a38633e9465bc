"""Add items to a trained retrieval run: their features, by the transforms of the run, without a training.

with run_with_items("outputs/my_run", "items_today.csv") as run: ...   # a folder like the run's, which ends with it
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.blocks import ITEM
from recsys.data.features.fitted import ITEMS, ROWS, SEMANTIC_IDS, Fitted, ItemTable
from recsys.data.features.resolved_data import ResolvedData, resolve
from recsys.data.features.vectors import Vectors
from recsys.data.prepare.item_table import check_items_table, item_features, parsed_items
from recsys.data.raw.vector_files import read_vectors
from recsys.data.semantic_ids.fit_semantic_ids import code_new_items
from recsys.files import manifest
from recsys.files.atomic import link_or_copy
from recsys.files.manifest import FILE
from recsys.job.fetched_runs import local_run
from recsys.job.kinds import meta_task
from recsys.schema.data_schema import SemanticIdsConfig
from recsys.training.run_dir import open_run

KEY = "items"
NOT_COPIED = (ITEMS, FILE, "profile", "tensorboard", "wandb", ".owner.json")  # of a run's folder


class NoNewItems(UserError):
    """A file has no item that the run does not know."""


@contextmanager
def run_with_items(run: str, file: str, checkpoint: str = "best") -> Iterator[str]:
    """Yield a folder that is the run's but for its items, to which those of a file are added.

    Items that the run knows keep their features.

    Args:
        run: the run's folder, or the address of its mirror.
        checkpoint: of the run, that is needed.

    Raises:
        UserError: the file has no new item, or the items of the run have no features.
    """
    cfg, folder = open_run(str(local_run(run, checkpoint=checkpoint)))
    fitted = Fitted.load(folder)
    if cfg.kind.scores_rows:
        raise UserError(f"{KEY}={file}: applies to retrieval models; this run's model scores rows of any items")
    if cfg.kind.fitted_at_once or not meta_task(cfg, fitted.features).model.ranks_new_items:
        why = "this run's model tells items apart by their ids alone, so that it cannot rank new ones"
        raise UserError(f"{KEY}={file}: {why}; train a model that reads data.items, or go on with start_from={run}")
    try:
        grown, added = with_new_items(fitted, file, folder)
    except UserError as e:
        if str(e).startswith(f"{KEY}="):
            raise
        raise UserError(f"{KEY}={file}: {e}") from e
    say(f"{KEY}={file}: {added:,} new items beside the {len(grown.rows) - 1 - added:,} of {run}")
    beside = folder.resolve().parent if os.access(folder.resolve().parent, os.W_OK) else None
    with TemporaryDirectory(prefix=".recsys-items-", dir=beside) as temporary:
        place = Path(temporary) / folder.resolve().name
        # files of a run are not changed, but replaced
        ignored = lambda at, _: NOT_COPIED if at == str(folder) else ()  # noqa: E731
        shutil.copytree(folder, place, copy_function=link_or_copy, ignore=ignored)
        grown.save(place / ITEMS)
        known = {n: e for n, e in (manifest.read(folder) or {}).items() if not n.startswith(f"{ITEMS}/")}
        manifest.write(place, manifest.entries_of(place, (place / ITEMS).rglob("*.*"), known=known))
        yield str(place)


def say_grown_items(run: str, checkpoint: str = "best") -> None:
    """Say how many items the run's own file of items has today that the run does not know, if it could list them."""
    table = local_run(run, checkpoint=checkpoint) / ITEMS / ROWS
    if not table.is_file():  # most runs; do not read their configs again
        return
    cfg, folder = open_run(str(table.parents[1]))
    ids = cfg.data.semantic_ids
    sources = [cfg.data.items.file, *(v.file for v in cfg.data.items.vectors.values())]
    sources += [] if ids is None else [ids.codes if ids.vectors is None else ids.vectors.file]
    if cfg.kind.fitted_at_once or cfg.data.root is None or not any(sources):
        return
    file = Path(cfg.data.root, next(name for name in sources if name))
    try:
        if file.stat().st_mtime <= table.stat().st_mtime:
            return
        fitted = Fitted.load(folder)
        _, added = with_new_items(fitted, str(file), folder)
    except (OSError, UserError):  # no file on this machine, no new item, or one that cannot be added
        return
    if meta_task(cfg, fitted.features).model.ranks_new_items:
        hint = f"{KEY}={file} lists them without a training"
        say(f"{file}: has {added:,} items that {run} does not know and cannot list; {hint}")


def with_new_items(fitted: Fitted, file: str, run: Path) -> tuple[ItemTable, int]:
    """Return the item table with the items of a file that it lacks behind its own, and their number.

    Args:
        file: as data.items.file or, for items that have vectors or codes alone, as their file in the run's data.
        run: the run's folder, which has the codes of its items.
    """
    data, table = fitted.data, fitted.items
    if table is None or data.item_table is None:
        why = "the items of this run have no features, so that nothing is known of new ones"
        raise UserError(f"{KEY}={file}: {why}; train with data.items.file or data.items.vectors")
    data = _reading(data, file)
    assert data.item_table is not None
    check_items_table(data)
    vectors = read_vectors(data.item_table, {})
    with TemporaryDirectory() as codes:
        coded = None if data.semantic_ids is None else Path(codes)
        if coded is not None:
            code_new_items(data, run / SEMANTIC_IDS, coded)
        rows = parsed_items(data, fitted, vectors, coded)
    new = rows.join(table.rows.select(ITEM), on=ITEM, how="anti", maintain_order="left").unique(
        ITEM, keep="last", maintain_order=True
    )
    if new.is_empty():
        raise NoNewItems(f"{KEY}={file}: all of its {rows.height:,} items are candidates of the run already")
    known = table.fitted
    for name, own in vectors.items():
        known.vectors[name] = _longer(known.vectors[name], own, new[ITEM])
    made = item_features(known, new).select(table.rows.columns)
    return ItemTable(known, pl.concat([table.rows, made])), new.height


def _reading(data: ResolvedData, file: str) -> ResolvedData:
    """Return the data with this file of items. Raises UserError if the data tell items by several files of vectors."""
    path = str(Path(file).expanduser().absolute())
    items = data.items
    vectors = {name: replace(c, normalise=[]) for name, c in items.vectors.items()}  # as those of the run, later
    ids = data.semantic_ids
    names = [f"data.items.vectors.{n}" for n in vectors] + [f"data.semantic_ids.{k}" for k in _file_keys(ids)]
    if items.file is None and len(names) > 1:
        why = f"items have vectors or codes of several files ({', '.join(names)}); append to these, and train again"
        raise UserError(f"{KEY}={file}: {why}")
    if items.file is None:
        vectors = {name: replace(c, file=path) for name, c in vectors.items()}
        if ids is not None and ids.vectors is not None:
            ids = replace(ids, vectors=replace(ids.vectors, file=path))
        elif ids is not None:
            ids = replace(ids, codes=path)
    if ids is not None and ids.vectors is not None:
        ids = replace(ids, vectors=replace(ids.vectors, normalise=[]))
    return resolve(replace(data, items=replace(items, file=items.file and path, vectors=vectors), semantic_ids=ids))


def _file_keys(ids: SemanticIdsConfig | None) -> list[str]:
    return [] if ids is None else [key for key in ("vectors", "codes") if getattr(ids, key) is not None]


def _longer(old: Vectors, new: Vectors, items: pl.Series) -> Vectors:
    """Return the old vectors, followed by those of new items, normalised as the old ones were."""
    chosen = new.values.is_in(items.implode()) & ~new.values.is_in(old.values.implode())
    matrix = old.normalise(new.matrix[1:][chosen.to_numpy()])
    return Vectors(pl.concat([old.values, new.values.filter(chosen)]), np.concatenate([old.matrix, matrix]), old.steps)
