"""Behaviour that depends on the kind of model: metrics and tasks.

`kind_of` returns the kind of a config's model, and `RunConfig.kind` keeps it. Ranking models predict labels of rows.
Retrieval models rank items for queries. Most models of both are trained step by step; fitted ranking models (boosted
trees) and closed-form models (which retrieve) are fitted at once. models/protocols.py has the methods of each kind.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recsys.base.errors import UserError
from recsys.config.safe_targets import moved
from recsys.data.features.resolved_data import ResolvedData
from recsys.evaluation import metrics_table
from recsys.interface.features import FeatureSpec
from recsys.job.build import build_loss, build_model, locate
from recsys.schema.class_facts import ClassFacts, LossFacts, losses_by_name, own_loss, own_model
from recsys.schema.run_schema import ProtocolConfig, TrainConfig

if TYPE_CHECKING:
    import torch

    from recsys.data.features import Fitted
    from recsys.evaluation.evaluators import Evaluator
    from recsys.evaluation.retrieval_protocols import Protocols
    from recsys.interface.candidates import Candidates
    from recsys.losses.task import RetrievalTask, Task


class ResolvedConfig(TrainConfig):
    """A training config whose data is resolved."""

    data: ResolvedData


class ModelKind(ABC):
    """The kind of a config's model.

    name: what such models are called in messages
    splits: on which such models are measured
    scores_rows: whether the model predicts a probability for each row; otherwise it ranks items for each query
    fitted_at_once: whether the model is fitted by one call of `fit`, in one process and without a loss, instead of step
        by step; it then has no embedding tables
    fitted_models: what models are called that are fitted at once
    has_vectors: whether the model has a vector of each item, as the metric diversity needs
    """

    name: str
    splits: tuple[str, ...] = ("train", "validation", "test")
    scores_rows = False
    fitted_at_once = False
    fitted_models = ""
    has_vectors = False

    @abstractmethod
    def metric_names(self, cfg: ResolvedConfig) -> list[str]:
        """Return the names of the metrics that are measured on a split."""

    @abstractmethod
    def default_monitor(self, cfg: ResolvedConfig) -> str:
        """Return the metric that selects the best checkpoint if the config names none."""

    @abstractmethod
    def candidates(self, fitted: Fitted) -> Candidates | None:
        """Return the candidates of the data; None for ranking models."""

    @abstractmethod
    def evaluator(self, cfg: ResolvedConfig, features: FeatureSpec, candidates: Candidates | None) -> Evaluator:
        """Return the evaluator of the task."""

    @abstractmethod
    def build_task(
        self, cfg: ResolvedConfig, features: FeatureSpec, device: torch.device, candidates: Candidates | None = None
    ) -> Task | RetrievalTask:
        """Return the task (model and loss) with its tables on `device`. candidates: candidates of a retrieval model."""

    def check_averaged(self, run: str) -> None:
        """Raise UserError if the model of a run, one of several whose predictions are averaged, retrieves items."""
        if not self.scores_rows:
            raise UserError(f"run={run}: its model retrieves items, and only predictions of rows can be averaged")


class RankingKind(ModelKind):
    """Models that predict a label for each row."""

    name = "ranking"
    scores_rows = True

    def metric_names(self, cfg: ResolvedConfig) -> list[str]:
        return metrics_table.label_names(_label_kinds(cfg), gauc=bool(cfg.metrics.gauc), group_ks=_group_ks(cfg))

    def default_monitor(self, cfg: ResolvedConfig) -> str:
        facts = loss_facts(cfg)
        if facts is not None and facts.protocol == "Tasks" and cfg.loss is not None:
            name = (cfg.loss.get("losses") or {}).get(next(iter(_label_kinds(cfg))), "")
            facts = losses_by_name().get(name)  # of the first label
        within = facts is not None and facts.within_groups
        return f"validation/{metrics_table.main_label(_label_kinds(cfg), _group_ks(cfg), within_groups=within)}"

    def candidates(self, fitted: Fitted) -> Candidates | None:
        return None

    def evaluator(self, cfg: ResolvedConfig, features: FeatureSpec, candidates: Candidates | None) -> Evaluator:
        from recsys.evaluation.evaluators import LabelsEvaluator

        m = cfg.metrics
        ks = m.k if features.grouped else ()
        every_id_known = m.gauc is not None and cfg.data.sparse_columns[m.gauc].encoder.knows_all
        return LabelsEvaluator(features.labels, m.exact_rows, m.bins, m.gauc, tuple(ks), every_id_known=every_id_known)

    def build_task(
        self, cfg: ResolvedConfig, features: FeatureSpec, device: torch.device, candidates: Candidates | None = None
    ) -> Task | RetrievalTask:
        from recsys.losses.position import PositionTower
        from recsys.losses.task import Task

        loss = None if cfg.loss is None else build_loss(cfg)
        model = build_model(cfg, features, device)
        target = "null" if cfg.loss is None else cfg.loss.get("_target_")
        try:
            position = None if features.position is None else PositionTower(features)
        except ValueError as e:
            raise UserError(str(e)) from e
        try:
            return Task(model, loss, features.labels, position)
        except ValueError as e:
            raise UserError(f"loss={target}: {e}") from e


class FittedRankingKind(RankingKind):
    """Models that predict a label for each row and are fitted at once."""

    fitted_at_once = True
    fitted_models = "boosted trees"


class RetrievalKind(ModelKind):
    """Models that rank items for queries."""

    name = "retrieval"
    splits = ("validation", "test")
    has_vectors = True

    def metric_names(self, cfg: ResolvedConfig) -> list[str]:
        protocol = protocol_of(cfg)
        return metrics_table.retrieval_names(protocol.k, protocol.protocols, protocol.lists)

    def default_monitor(self, cfg: ResolvedConfig) -> str:
        protocol = protocol_of(cfg)
        return f"validation/{metrics_table.main_retrieval(protocol.k, protocol.protocols)}"

    def candidates(self, fitted: Fitted) -> Candidates | None:
        from recsys.data.features.batch_tensors import candidates_of

        return candidates_of(fitted)

    def evaluator(self, cfg: ResolvedConfig, features: FeatureSpec, candidates: Candidates | None) -> Evaluator:
        from recsys.evaluation.evaluators import RetrievalEvaluator
        from recsys.evaluation.retrieval_metrics import RetrievalMetrics

        assert candidates is not None
        return RetrievalEvaluator(RetrievalMetrics(protocol_of(cfg), candidates.popularity.cpu().numpy()))

    def build_task(
        self, cfg: ResolvedConfig, features: FeatureSpec, device: torch.device, candidates: Candidates | None = None
    ) -> Task | RetrievalTask:
        from recsys.losses.task import RetrievalTask

        return RetrievalTask(build_model(cfg, features, device), build_loss(cfg), candidates)


class ClosedFormKind(RetrievalKind):
    """Retrieval models that are fitted in closed form."""

    name = "closed form"
    fitted_at_once = True
    fitted_models = "closed-form models"
    has_vectors = False


MODEL_KINDS: dict[str, ModelKind] = {
    "ranking": RankingKind(),
    "fitted_ranking": FittedRankingKind(),
    "retrieval": RetrievalKind(),
    "closed_form": ClosedFormKind(),
}


def target_of(node: object) -> str:
    """Return the class that a node names; empty if it names none."""
    return moved(str(node.get("_target_") or "")) if isinstance(node, dict) else ""


def model_facts(cfg: ResolvedConfig) -> ClassFacts | None:
    """Return the facts of one of recsys's own models; None for a class of the user's."""
    return own_model(target_of(cfg.model))


def model_kind_of(cfg: ResolvedConfig) -> str | None:
    """Return the kind of one of recsys's own models (models/protocols.py); None for a class of the user's."""
    own = model_facts(cfg)
    return None if own is None else own.model_kind


def loss_facts_of(cfg: ResolvedConfig) -> LossFacts | None:
    """Return the facts of one of recsys's own losses; None for a class of the user's, or without a loss."""
    return own_loss(target_of(cfg.loss))


def learns_all_rows(cfg: ResolvedConfig) -> bool:
    """Return whether the model is one of recsys's own that learns every label from all rows."""
    facts = model_facts(cfg)
    return facts is not None and bool(facts.constants.get("labels_all_rows"))


def kind_of(cfg: ResolvedConfig) -> ModelKind:
    """Return the kind of the config's model. Raises UserError as `kind_name`."""
    return MODEL_KINDS[kind_name(cfg)]


def kind_name(cfg: ResolvedConfig) -> str:
    """Return the kind of the config's model. Raises UserError if the model cannot be found or declares no kind."""
    if (known := model_kind_of(cfg)) is not None:
        return known
    from recsys.models.protocols import model_kind

    try:
        return model_kind(locate(cfg.model.get("_target_") or "", "model"))
    except TypeError as e:
        raise UserError(f"model: {e}") from e


def meta_task(cfg: ResolvedConfig, features: FeatureSpec) -> Task | RetrievalTask:
    """Return the task for `features` with its tables, padded as in training, on the meta device, for planning."""
    import torch

    from recsys.sharding.tables import lay_out_tables

    with torch.random.fork_rng(devices=[]):  # the initial values of this model are not those of the run
        task = kind_of(cfg).build_task(cfg, features, torch.device("meta"))
        lay_out_tables(task, cfg.sharding.padding, cfg.sharding.table_dtype)
    return task


def protocol_of(cfg: ResolvedConfig) -> Protocols:
    """Return cfg.protocol as a Protocols object. Raises UserError if it is invalid."""
    from recsys.evaluation.retrieval_protocols import Protocols

    p = cfg.protocol
    check_full_ranking(p, "lists", [name for name in p.lists if name not in type(p)().lists])
    lists = tuple(name for name in p.lists if name != "diversity" or kind_of(cfg).has_vectors)
    try:
        return Protocols(
            k=tuple(p.k),
            protocols=tuple(p.candidates),
            negatives=p.negatives,
            filter_history=p.filter_history,
            rank_repeats=p.rank_repeats,
            seed=p.seed,
            lists=lists,
            exposure=tuple(p.exposure),
        )
    except ValueError as e:
        raise UserError(f"protocol.{e}") from e


def check_full_ranking(protocol: ProtocolConfig, key: str, asked: Sequence[str]) -> None:
    """Raise UserError if a key of `protocol` asks for something of lists, which only the protocol full makes."""
    if asked and "full" not in protocol.candidates:
        needs = f"needs protocol.candidates=[full], and this is {protocol.candidates}"
        raise UserError(f"protocol.{key}={asked}: {needs}")


def _label_kinds(cfg: ResolvedConfig) -> dict[str, str]:
    """Return the kind of each label by name; one binary label if the data has none, which the checks refuse."""
    return {name: label.kind for name, label in cfg.data.label_configs.items()} or {"label": "binary"}


def _group_ks(cfg: ResolvedConfig) -> tuple[int, ...]:
    """Return the values of k of metrics within groups; none if batches do not keep groups together."""
    return tuple(cfg.metrics.k) if cfg.data.together else ()


def loss_facts(cfg: ResolvedConfig) -> LossFacts | None:
    """Return the facts of the config's loss, also of a class of the user's; None without a loss."""
    if cfg.loss is None:
        return None
    if (known := loss_facts_of(cfg)) is not None:
        return known
    from recsys.losses import RankingLoss

    loss: Any = locate(cfg.loss.get("_target_") or "", "loss")
    if RankingLoss in inspect.getmro(loss):
        return LossFacts("RankingLoss", tuple(loss.kinds), loss.within_groups)
    return LossFacts("RetrievalLoss")
