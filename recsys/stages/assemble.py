"""Build a pipeline from its config, and check it: first what the config and the manifests say, then the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.job.build import make
from recsys.job.check_built import check_target
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.catalogue import Catalogue, unit
from recsys.stages.filters import Filter
from recsys.stages.merge import Merge, ReciprocalRank
from recsys.stages.open_models import Models, Resources
from recsys.stages.order import Order
from recsys.stages.read_tables import check_times, distinct_rows, read_table
from recsys.stages.score import Score
from recsys.stages.sources import Source
from recsys.stages.staged import StagedRecommender
from recsys.stages.visitor import Events
from recsys.store.definition import load_views
from recsys.store.request_features import OnlineFeatures
from recsys.store.stores import open_store
from recsys.store.views import View


@dataclass(frozen=True)
class Parts:
    """The parts of a pipeline, built but not loaded."""

    sources: Mapping[str, Source]
    merge: Merge
    filters: Mapping[str, Filter]
    score: Score | None
    order: Mapping[str, Order]


def build_parts(cfg: PipelineConfig) -> Parts:
    """Build the parts that a config names. Raises UserError for a mistake, before anything is loaded."""
    if not cfg.sources:
        raise UserError("sources: is empty; add one, such as sources.mine._target_=recsys.stages.sources.Model")
    order = _named(cfg.order, "order", Order)
    if early := next((n for n in list(order)[:-1] if order[n].explores), None):
        raise UserError(f"order.{early}: explores, and its probabilities hold only if no part follows; move it last")
    return Parts(
        _named(cfg.sources, "sources", Source),
        _part(cfg.merge, "merge", Merge) if cfg.merge is not None else ReciprocalRank(),
        _named(cfg.filters, "filters", Filter),
        _part(cfg.score, "score", Score) if cfg.score is not None else None,
        order,
    )


def _named(node: Mapping[str, Any], key: str, base: type) -> dict[str, Any]:
    parts = {str(n): part for n, part in node.items() if part is not None}
    for name, part in parts.items():
        if not isinstance(part, dict) or "_target_" not in part:
            raise UserError(f"{key}.{name}: has no _target_; write its class, or leave it out with ~{key}.{name}")
    return {name: _part(part, f"{key}.{name}", base) for name, part in parts.items()}


def _part(node: Mapping[str, Any], key: str, base: type) -> Any:
    check_target(node, key, base=base)
    try:
        return make(node, key, base)()
    except ValueError as e:
        raise UserError(f"{key}: {e}") from e


def tables_root(config: PipelineConfig) -> Path:
    """Return the folder from which the paths of tables start."""
    return Path(config.root if config.data_root is None else config.data_root).expanduser()


def load(config: PipelineConfig, past: pl.DataFrame | None = None) -> StagedRecommender:
    """Build and load a pipeline. Raises UserError for a mistake.

    past: events that replace the events of the config, such as the events before a test
    """
    parts = build_parts(config)
    models, root = Models(Path(config.root).expanduser(), config.threads), tables_root(config)
    items = users = events = None
    if config.items is not None:
        items = distinct_rows(read_table(config.items, root, "items", (config.item,)), config.item, "items")
    if config.users is not None:
        users = distinct_rows(read_table(config.users, root, "users", (config.user,)), config.user, "users")
    views = _views(config)
    if config.events is not None and (past is not None or config.features.history is None):
        frame = read_table(config.events, root, "events", (config.user, config.item)) if past is None else past
        if config.time is not None and config.time not in frame.columns:
            raise UserError(f"events: has no column {config.time}, which the key time names")
        if config.time is not None:
            check_times(frame, config.time, "events")
        events = Events(frame, config.user, config.item, config.time, config.history)
    opened = {name: source.open(models, f"sources.{name}") for name, source in parts.sources.items()}
    if parts.score is not None:
        parts.score.open(models, "score")
    catalogue = _make_catalogue(items, config.item, opened, parts.sources)
    of_users, of_items = ({n: v for n, v in views.items() if v.key == key} for key in (config.user, config.item))
    stored = [name for view in of_users.values() for name in view.names]
    features, item_features = _features(config, of_users), _features(config, of_items)
    user_columns = [] if users is None else users.columns
    context = [config.user, *([config.time] if config.time else []), *config.context]
    resources = Resources(
        catalogue, models, [*user_columns, *stored], context, events, list(parts.sources), item_features
    )
    for name, source in parts.sources.items():
        source.bind(resources, f"sources.{name}")
    for name, part in parts.filters.items():
        part.bind(resources, f"filters.{name}")
    for name, order in parts.order.items():
        order.bind(resources, f"order.{name}")
    if parts.score is not None:
        parts.score.bind(resources, "score", config.item, config.user, config.time)
    rows = {} if users is None else {row[config.user]: row for row in users.iter_rows(named=True)}
    return StagedRecommender(
        config,
        catalogue,
        parts.sources,
        parts.merge,
        parts.filters,
        parts.score,
        parts.order,
        rows,
        events,
        features,
        models.item_type,
    )


def _make_catalogue(
    items: pl.DataFrame | None, item: str, opened: Mapping[str, pl.Series | None], sources: Mapping[str, Source]
) -> Catalogue:
    """Return all items of the table and of the sources, with the columns of the table and the sources' vectors.

    Raises UserError if there are none, or if the sources know none of the table's.
    """
    table = items if items is not None else pl.DataFrame({item: pl.Series([], dtype=pl.String)})
    lists = [table[item], *(names.cast(pl.String) for names in opened.values() if names is not None)]
    names = pl.concat([x.rename("") for x in lists]).unique(maintain_order=True)
    if not len(names):
        raise UserError("items: there are none; name the table of items, or a source that has some")
    if items is not None:
        for source, known in opened.items():
            if known is not None and not known.is_in(table[item].implode()).any():
                raise UserError(
                    f"sources.{source}: lists items such as {known[0]}, and the table of items has none of them, but "
                    f"{table[item][0]}; name the column of its items with item="
                )
    columns = pl.DataFrame({item: names}).join(table, on=item, how="left", maintain_order="left")
    catalogue = Catalogue(names, columns)
    for source, known in opened.items():
        vectors = sources[source].vectors()
        if known is not None and vectors is not None:
            whole = np.zeros((len(names), vectors.shape[1]), np.float32)
            whole[catalogue.numbers(known)] = unit(vectors)
            catalogue.embeddings[source] = whole
    return catalogue


def _views(config: PipelineConfig) -> dict[str, View]:
    """Return the views of users and items; the path of their file starts from the folder of the tables."""
    if config.features.definition is None:
        if config.features.history is not None:
            needs = "needs features.definition, a YAML file of views"
            raise UserError(f"features.history={config.features.history}: {needs}")
        return {}
    views = load_views(tables_root(config) / config.features.definition)
    name = config.features.history
    lists = [a.name for v in views.values() if v.key == config.user for a in v.aggregates if a.number is not None]
    if name is not None and name not in lists:
        raise UserError(
            f"features.history={name}: is not a list of a view of users in {config.features.definition}"
            f"{did_you_mean(name, lists)}; add an aggregate such as {name}: {{last: {config.item}, number: 50}}"
        )
    return {n: view for n, view in views.items() if view.key in (config.user, config.item)}


def _features(config: PipelineConfig, views: Mapping[str, View]) -> OnlineFeatures | None:
    if not views:
        return None
    return OnlineFeatures(views, open_store(config.features.store, write=False))
