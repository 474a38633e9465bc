"""Behaviour that depends on the kind of model: metrics, checks and tasks.

`kind_of` selects the kind of a config's model. Ranking models predict labels of rows. Retrieval models rank items for
queries. Most models of both are trained step by step; fitted ranking models (boosted trees) and closed-form models
(which retrieve) are fitted at once. models/protocols.py has the methods of each kind.
"""

from abc import ABC, abstractmethod
from typing import Any

from omegaconf import DictConfig

from recsys.config.build import build_loss, build_model
from recsys.config.targets import locate
from recsys.errors import UserError, did_you_mean
from recsys.evaluation import metrics_table

NO_LOSS = "loss: must be set for this model, for example loss=full_softmax"
EXAMPLES = {"RankingLoss": "binary_cross_entropy", "RetrievalLoss": "full_softmax"}  # a choice of `loss` for each


class ModelKind(ABC):
    """The kind of a config's model.

    scores_rows: whether the model predicts a probability for each row; otherwise it ranks items for each query
    fitted_at_once: whether the model is fitted by one call of `fit`, in one process and without a loss, instead of step
        by step; it then has no embedding tables
    fitted_models: what such models are called in messages
    has_vectors: whether the model has a vector of each item, as the metric diversity needs
    """

    scores_rows = False
    fitted_at_once = False
    fitted_models = ""
    has_vectors = False

    @abstractmethod
    def metric_names(self, cfg: DictConfig) -> list[str]:
        """Return the names of the metrics that are measured on a split."""

    @abstractmethod
    def default_monitor(self, cfg: DictConfig) -> str:
        """Return the metric that selects the best checkpoint if the config names none."""

    @abstractmethod
    def check(self, cfg: DictConfig, features: Any) -> None:
        """Raise UserError if the data, the model and the loss are not compatible."""

    @abstractmethod
    def candidates(self, fitted: Any) -> Any:
        """Return the candidates of the data; None for ranking models."""

    @abstractmethod
    def evaluator(self, cfg: DictConfig, features: Any, candidates: Any) -> Any:
        """Return the evaluator of the task."""

    @abstractmethod
    def build_task(self, cfg: DictConfig, features: Any, device: Any, candidates: Any = None) -> Any:
        """Return the task (model and loss) with its tables on `device`. candidates: candidates of a retrieval model."""


class RankingKind(ModelKind):
    """Models that predict a label for each row."""

    scores_rows = True

    def metric_names(self, cfg: DictConfig) -> list[str]:
        return metrics_table.label_names(_label_kinds(cfg), gauc=bool(cfg.metrics.gauc), group_ks=_group_ks(cfg))

    def default_monitor(self, cfg: DictConfig) -> str:
        within = _is_within_groups(cfg)
        return f"validation/{metrics_table.main_label(_label_kinds(cfg), _group_ks(cfg), within_groups=within)}"

    def check(self, cfg: DictConfig, features: Any) -> None:
        check_rows(cfg, "ranking", has_labels=bool(features.labels), has_items=False)
        _check_loss(cfg, "RankingLoss")

    def candidates(self, fitted: Any) -> Any:
        return None

    def evaluator(self, cfg: DictConfig, features: Any, candidates: Any) -> Any:
        from recsys.config.settings import data_config
        from recsys.evaluation.evaluators import LabelsEvaluator

        m = cfg.metrics
        ks = m.k if features.grouped else ()
        every_id_known = m.gauc is not None and data_config(cfg).sparse_columns[m.gauc].encode == "id"
        return LabelsEvaluator(features.labels, m.exact_rows, m.bins, m.gauc, tuple(ks), every_id_known=every_id_known)

    def build_task(self, cfg: DictConfig, features: Any, device: Any, candidates: Any = None) -> Any:
        from recsys.task import Task

        loss = None if cfg.loss is None else build_loss(cfg)
        model = build_model(cfg, features, device)
        target = "null" if loss is None else cfg.loss.get("_target_")
        try:
            task = Task(model, loss, features.labels)
        except ValueError as e:
            raise UserError(f"loss={target}: {e}") from e
        if getattr(task.loss, "within_groups", False) and not features.grouped:
            raise together_needed(cfg)
        return task


class FittedRankingKind(RankingKind):
    """Models that predict a label for each row and are fitted at once."""

    fitted_at_once = True
    fitted_models = "boosted trees"

    def check(self, cfg: DictConfig, features: Any) -> None:
        check_rows(cfg, "ranking", has_labels=bool(features.labels), has_items=False)
        if cfg.loss is not None:
            raise fitted_without_loss(cfg)
        check_ranking_keys(cfg)


class RetrievalKind(ModelKind):
    """Models that rank items for queries."""

    has_vectors = True

    def metric_names(self, cfg: DictConfig) -> list[str]:
        protocol = protocol_of(cfg)
        return metrics_table.retrieval_names(protocol.k, protocol.protocols, protocol.lists)

    def default_monitor(self, cfg: DictConfig) -> str:
        protocol = protocol_of(cfg)
        return f"validation/{metrics_table.main_retrieval(protocol.k, protocol.protocols)}"

    def check(self, cfg: DictConfig, features: Any) -> None:
        check_ranking_keys(cfg)
        if cfg.metrics.gauc:
            why = "applies to ranking models only, and this is a retrieval model; set metrics.gauc=null"
            raise UserError(f"metrics.gauc={cfg.metrics.gauc}: {why}")
        check_rows(cfg, "retrieval", has_labels=False, has_items=features.item is not None)
        if cfg.data.sequences is not None and cfg.data.sequences.pad is not None:
            raise UserError(
                f"data.sequences.pad={cfg.data.sequences.pad}: retrieval models read unpadded lists; "
                "set data.sequences.pad=null"
            )
        self.check_training(cfg, features)

    def check_training(self, cfg: DictConfig, features: Any) -> None:
        """Raise UserError if the model cannot be trained with this loss and data."""
        if cfg.loss is None:
            raise UserError(NO_LOSS)
        _check_loss(cfg, "RetrievalLoss")

    def candidates(self, fitted: Any) -> Any:
        from recsys.data.batch_tensors import candidates_of

        return candidates_of(fitted)

    def evaluator(self, cfg: DictConfig, features: Any, candidates: Any) -> Any:
        from recsys.evaluation.evaluators import RetrievalEvaluator
        from recsys.evaluation.retrieval_metrics import RetrievalMetrics

        return RetrievalEvaluator(RetrievalMetrics(protocol_of(cfg), candidates.popularity.cpu().numpy()))

    def build_task(self, cfg: DictConfig, features: Any, device: Any, candidates: Any = None) -> Any:
        from recsys.task import RetrievalTask

        return RetrievalTask(build_model(cfg, features, device), build_loss(cfg), candidates)


class ClosedFormKind(RetrievalKind):
    """Retrieval models that are fitted in closed form."""

    fitted_at_once = True
    fitted_models = "closed-form models"
    has_vectors = False

    def check_training(self, cfg: DictConfig, features: Any) -> None:
        if not features.feature(features.item).sequence:
            raise UserError("model: this model reads lists of items; set data.sequences.max_length")
        if cfg.loss is not None:
            raise fitted_without_loss(cfg)


KINDS: dict[str, ModelKind] = {
    "ranking": RankingKind(),
    "fitted_ranking": FittedRankingKind(),
    "retrieval": RetrievalKind(),
    "closed_form": ClosedFormKind(),
}


def check_rows(cfg: DictConfig, kind: str, *, has_labels: bool, has_items: bool) -> None:
    """Raise UserError if the rows lack what a model of this kind predicts."""
    if kind == "ranking" and not has_labels:
        why = "the rows have no label, but this model predicts one; set data.label.column or data.labels"
        raise UserError(f"data={cfg.data.name}: {why}")
    if kind != "ranking" and not has_items:
        why = "set data.items.feature to the sparse feature whose values are the items"
        raise UserError(f"data={cfg.data.name}: this model retrieves items; {why}")


def kind_of(cfg: DictConfig) -> ModelKind:
    """Return the kind of the config's model. Raises UserError if the model cannot be found or declares no kind."""
    from recsys.models.protocols import model_kind

    try:
        return KINDS[model_kind(locate(cfg.model.get("_target_") or "", "model"))]
    except TypeError as e:
        raise UserError(f"model: {e}") from e


def build_task(cfg: DictConfig, features: Any, device: Any, candidates: Any = None) -> Any:
    """Return the task (model and loss) with its tables on `device`. candidates: candidates of a retrieval model."""
    return kind_of(cfg).build_task(cfg, features, device, candidates)


def meta_task(cfg: DictConfig, features: Any) -> Any:
    """Return the task for `features` on the meta device, with its tables padded as in training, for planning."""
    import torch

    from recsys.sharding.tables import pad_tables

    with torch.device("meta"):
        task = build_task(cfg, features, torch.device("meta"))
        pad_tables(task, cfg.sharding.padding)
    return task


def protocol_of(cfg: DictConfig) -> Any:
    """Return cfg.protocol as a Protocols object. Raises UserError if it is invalid."""
    from recsys.evaluation.retrieval_metrics import Protocols

    p = cfg.protocol
    lists = tuple(name for name in p.lists if name != "diversity" or kind_of(cfg).has_vectors)
    try:
        return Protocols(tuple(p.k), tuple(p.candidates), p.negatives, p.filter_history, p.seed, lists)
    except ValueError as e:
        raise UserError(f"protocol.{e}") from e


def monitor_of(cfg: DictConfig, given: str | None) -> str:
    """Return the metric that selects the best checkpoint: `given`, or the kind's default if it is None."""
    return kind_of(cfg).default_monitor(cfg) if given is None else given


def metric_names(cfg: DictConfig) -> list[str]:
    """Return the names of the metrics that are measured on a split."""
    return kind_of(cfg).metric_names(cfg)


def check_leads(key: str, name: str, measured: list[str]) -> None:
    """Raise UserError if the metric that `key` names is not measured, or if no direction of it is better."""
    if name not in measured:
        raise UserError(f"{key}={name}: no such metric{did_you_mean(name, measured)}")
    entry = metrics_table.metric(name)
    if entry is not None and entry.better is None:
        raise UserError(
            f"{key}={name}: neither large nor small values are better ({entry.meaning}); use another metric"
        )


def _label_kinds(cfg: DictConfig) -> dict[str, str]:
    """Return the kind of each label by name; one binary label if the data has none, which `check` refuses."""
    if cfg.data.labels:
        return {name: label.kind for name, label in cfg.data.labels.items()}
    return {"label": cfg.data.label.kind}


def _group_ks(cfg: DictConfig) -> tuple[int, ...]:
    """Return the values of k of metrics within groups; none if batches do not keep groups together."""
    return tuple(cfg.metrics.k) if cfg.data.group is not None and cfg.data.group.together else ()


def _is_within_groups(cfg: DictConfig) -> bool:
    """Return whether the loss, or that of the first label, compares the rows of a group."""
    from recsys.losses.tasks import LOSSES, Tasks

    if cfg.loss is None:
        return False
    loss: Any = locate(cfg.loss.get("_target_") or "", "loss")
    if loss is Tasks:
        loss = LOSSES.get((cfg.loss.get("losses") or {}).get(next(iter(_label_kinds(cfg))), ""))
    return bool(getattr(loss, "within_groups", False))


def _check_loss(cfg: DictConfig, protocol: str) -> None:
    """Raise UserError if the config's loss does not subclass `protocol`, a class of recsys.losses."""
    import inspect

    from recsys import losses

    if cfg.loss is None:
        return
    target = locate(cfg.loss.get("_target_") or "", "loss")
    if protocol == "RankingLoss" and target is losses.Tasks:
        return
    if inspect.isclass(target) and getattr(losses, protocol) not in inspect.getmro(target):
        raise wrong_loss(cfg, protocol)


def wrong_loss(cfg: DictConfig, protocol: str) -> UserError:
    """Return the error for a loss that is not a `protocol`, a class of recsys.losses."""
    return UserError(
        f"loss={cfg.loss.get('_target_')}: this model needs a {protocol}, such as loss={EXAMPLES[protocol]}; "
        f"your own loss must subclass recsys.losses.{protocol}"
    )


def fitted_without_loss(cfg: DictConfig) -> UserError:
    """Return the error for a loss of a model that is fitted at once."""
    return UserError(f"loss={cfg.loss.get('_target_')}: this model is fitted without a loss; leave loss= out")


def check_scores_rows(cfg: DictConfig, run: str) -> None:
    """Raise UserError if the model of a run, one of several whose predictions are averaged, retrieves items."""
    if not kind_of(cfg).scores_rows:
        raise UserError(f"run={run}: its model retrieves items, and only predictions of rows can be averaged")


def check_ranking_keys(cfg: DictConfig) -> None:
    """Raise UserError if the config of another model has keys of ranking models that are trained step by step."""
    if cfg.get("numeric") is not None:
        why = "embeds the numbers of a ranking model that is trained step by step, and this model is not one"
        raise UserError(f"numeric={cfg.numeric.get('_target_')}: {why}; leave numeric= out")
    if cfg.get("dims") is not None:
        raise UserError(f"dims={cfg.dims}: sets the tables of ranking models only; leave dims= out")


def together_needed(cfg: DictConfig) -> UserError:
    """Return the error for a loss within groups if batches do not keep groups together."""
    by = "" if cfg.data.group is not None and cfg.data.group.by else "data.group.by=COLUMN "
    why = f"compares the rows of a group; set {by}data.group.together=true"
    return UserError(f"loss={cfg.loss.get('_target_')}: {why}")
