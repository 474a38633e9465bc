"""Check what the config alone shows to be wrong, before the slow imports of PyTorch, TorchRec and FBGEMM.

The facts of recsys's own models and losses come from schema/class_facts.py. For classes of users, `check_built`
calls `check_fit` again after it has imported them.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from recsys.base.console import say
from recsys.base.errors import UserError, did_you_mean
from recsys.base.packages import EXTRAS, check_extra
from recsys.base.ranges import FLOAT32_MAX
from recsys.base.secrets import still_masked, variable
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.data.features.resolved_data import ResolvedData, feature_spec
from recsys.data.raw.vector_files import table_widths
from recsys.evaluation.metrics_table import metric, mode_of
from recsys.job.build import BUILT_WITH, check_target_path, with_dims
from recsys.job.check_folders import check_folders
from recsys.job.kinds import check_full_ranking, learns_all_rows, loss_facts_of, model_facts, model_kind_of, target_of
from recsys.job.resumed import names_a_run
from recsys.job.run_config import RunConfig
from recsys.schema.class_facts import LossFacts, losses_by_name
from recsys.schema.run_schema import ProtocolConfig
from recsys.schema.signatures import check_against_source

TRAINING_KEYS = ("logger", "engine", "sweep")  # parts of a run's config that no later command reads
EXAMPLES = {"RankingLoss": "binary_cross_entropy", "RetrievalLoss": "full_softmax"}  # a choice of `loss` for each


def check_config(given: DictConfig | RunConfig, *, trains: bool = True) -> RunConfig:
    """Check the values of a training config, its data, and whether model, loss and metrics fit them.

    Args:
        given: the config that Hydra composed, or that of a run.
        trains: the config will be used for training; if not, its loggers and the like are not used.

    Returns:
        The config of the run.

    Raises:
        UserError: the config has a mistake.
    """
    from recsys.data.prepare.check_data import check_data, check_reader_installed
    from recsys.data.prepare.prepared import check_engine

    cfg = RunConfig.of(given)
    if key := still_masked(cfg.plain, () if trains else TRAINING_KEYS):
        hint = f"set it on the command line, or in the environment variable {variable(key)}"
        raise UserError(f"{key}: is a secret, which the run's config.yaml does not hold; {hint}")
    check_data(cfg.data)
    check_fit(cfg, model_kind_of(cfg), loss_facts_of(cfg))
    if trains:
        check_reader_installed(cfg.data)
        check_engine(cfg.engine)
        for name, node in cfg.logger.items():
            check_target_path(node, f"logger.{name}")
    library = cfg.model.get("library")
    if model_kind_of(cfg) == "fitted_ranking" and library in EXTRAS["gbm"]:
        check_extra("gbm", f"model.library={library}", library)
    _check_steps(cfg)
    _check_parts(cfg)
    _check_metrics(cfg)
    _check_calibration(cfg)
    if trains and model_kind_of(cfg) is not None and (cfg.loss is None or loss_facts_of(cfg) is not None):
        check_monitors(cfg)  # of classes of users: after the imports
    if trains:
        check_folders(cfg, None if names_a_run(cfg) else cfg.run_dir)
    return cfg


def check_vector_widths(cfg: RunConfig) -> None:
    """Raise UserError if pretrained vectors have another width than the tables of one of recsys's own models."""
    own, dim = model_facts(cfg), cfg.model.get("dim")
    if own is None or own.constants.get("wider_than_dim") or not isinstance(dim, int):
        return
    for name, (_, width) in table_widths(cfg.data).items():
        if width != dim:
            raise UserError(
                f"data.sparse.{name}.vectors: the vectors have {width} numbers, but the model's table has {dim}; "
                f"set model.dim={width}"
            )


# --- model, loss and data ------------------------------------------------------------------------------------


def check_fit(cfg: RunConfig, model: str | None, loss: LossFacts | None) -> None:
    """Raise UserError if the model, the loss and the data of a config do not fit each other.

    Args:
        model: the kind of the model; None if it is not known before the imports.
        loss: the facts of the loss; None without a loss, or if they are not known before the imports.
    """
    if model is None:
        return
    data, ranks_rows = cfg.data, model in ("ranking", "fitted_ranking")
    if ranks_rows and not data.label_configs:
        why = "the rows have no label, but this model predicts one; set data.label.column or data.labels"
        raise UserError(f"data={cfg.data.name}: {why}")
    if not ranks_rows and data.item_feature is None:
        why = "set data.items.feature to the sparse feature whose values are the items"
        raise UserError(f"data={cfg.data.name}: this model retrieves items; {why}")
    if learns_all_rows(cfg):
        names = [*data.label_configs]
        for i, (name, label) in enumerate(data.label_configs.items()):
            key = data.label_key(name)
            if label.only_if in names[i:]:
                raise UserError(
                    f"{key}.only_if={label.only_if}: this model takes the first label for the click; put "
                    f"{label.only_if} before {name}"
                )
            if label.only_if is not None and label.otherwise != 0:
                why = "this model learns a conversion from all rows"
                raise UserError(f"{key}.only_if={label.only_if}: {why}; set {key}.otherwise=0, the label of the others")
    if model != "ranking" and data.position_column is not None:
        why = "is learned beside a ranking model that is trained step by step, and this model is not one; leave it out"
        raise UserError(f"data.position.column={data.position_column}: {why}")
    if data.position_column is not None and cfg.calibration != "none":
        why = "predictions are for the first position, and validation rows are of all; set calibration=none"
        raise UserError(f"calibration={cfg.calibration}: {why}")
    if model != "ranking" and cfg.numeric is not None:
        why = "embeds the numbers of a ranking model that is trained step by step, and this model is not one"
        raise UserError(f"numeric={cfg.numeric.get('_target_')}: {why}; leave numeric= out")
    if model != "ranking" and cfg.dims is not None:
        raise UserError(f"dims={cfg.dims}: sets the tables of ranking models only; leave dims= out")
    if not ranks_rows and cfg.metrics.gauc:
        why = "applies to ranking models only, and this is a retrieval model; set metrics.gauc=null"
        raise UserError(f"metrics.gauc={cfg.metrics.gauc}: {why}")
    if not ranks_rows and data.sequences is not None and data.sequences.pad is not None:
        why = "retrieval models read unpadded lists; set data.sequences.pad=null"
        raise UserError(f"data.sequences.pad={data.sequences.pad}: {why}")
    if model == "closed_form" and data.sequences is None:
        raise UserError("model: this model reads lists of items; set data.sequences.max_length")
    if model in ("fitted_ranking", "closed_form") and cfg.loss is not None:
        _check_order(cfg)
    if model == "retrieval" and cfg.loss is None:
        raise UserError("loss: must be set for this model, for example loss=full_softmax")
    if loss is not None and model == "retrieval" and loss.protocol != "RetrievalLoss":
        raise _wrong_loss(cfg, "RetrievalLoss")
    if model == "retrieval" and (own := model_facts(cfg)) is not None:
        generates, reads = own.constants["generates"], target_of(cfg.loss).endswith(".Likelihood")
        if generates and not reads:
            why = "this model predicts probabilities of items; set loss=likelihood"
            raise UserError(f"loss={target_of(cfg.loss)}: {why}")
        if reads and not generates:
            why = "this model scores items; set loss=likelihood only for model=tiger"
            raise UserError(f"loss={target_of(cfg.loss)}: {why}")
    _check_times(cfg, model)
    if loss is not None and ranks_rows:
        _check_ranking_loss(cfg, loss)


def _check_times(cfg: RunConfig, model: str) -> None:
    """Raise UserError for the age of interactions that have no time."""
    key, node = ("model", cfg.model) if model == "closed_form" else ("loss", cfg.loss or {})
    for name in ("window", "half_life"):
        if node.get(name) is not None and not cfg.data.time_columns:
            why = "the training items of this data have no times; set data.sequences.max_length and data.group.order"
            raise UserError(f"{key}.{name}={node[name]}: {why}")


def _check_order(cfg: RunConfig) -> None:
    """Raise UserError for a loss of a model that is fitted at once; boosted trees can order the rows of groups."""
    assert cfg.loss is not None
    own, loss = model_facts(cfg), target_of(cfg.loss)
    if own is None or not own.constants.get("orders_groups"):
        raise UserError(f"loss={loss}: this model is fitted without a loss; leave loss= out")
    if not loss.endswith(".Pairwise"):
        why = "boosted trees are fitted to labels, or to the order of the rows of groups"
        raise UserError(f"loss={loss}: {why}; leave loss= out, or write loss=pairwise")
    if cfg.model.get("library", "lightgbm") != "lightgbm":
        raise UserError(f"model.library={cfg.model['library']}: does not order groups here; use library=lightgbm")
    if cfg.loss.get("pointwise"):
        why = "boosted trees fit the order of rows alone"
        raise UserError(f"loss.pointwise={cfg.loss['pointwise']}: {why}; leave it out")


def _check_ranking_loss(cfg: RunConfig, loss: LossFacts) -> None:
    """Raise UserError if a loss does not fit the labels; a loss within groups needs batches that keep them together."""
    if loss.protocol == "RetrievalLoss":
        raise _wrong_loss(cfg, "RankingLoss")
    assert cfg.loss is not None
    labels = {label: c.kind for label, c in cfg.data.label_configs.items()}
    if loss.protocol == "Tasks":
        losses = _losses_of_tasks(cfg.loss, labels)
        within_groups = any(part.within_groups for part in losses)
    else:
        within_groups = loss.within_groups
        if not set(loss.kinds) & set(labels.values()):
            kinds = ", ".join(dict.fromkeys(labels.values()))
            why = f"is a loss of {' and '.join(loss.kinds)} labels; this data has labels of kind {kinds}"
            raise UserError(f"loss={target_of(cfg.loss)}: {why}")
    if within_groups and not cfg.data.together:
        by = "" if cfg.data.group is not None and cfg.data.group.by else "data.group.by=COLUMN "
        why = f"compares the rows of a group; set {by}data.group.together=true"
        raise UserError(f"loss={target_of(cfg.loss)}: {why}")
    if within_groups and cfg.calibration != "none" and not cfg.loss.get("pointwise"):
        say(
            f"calibration={cfg.calibration}: a loss within groups does not learn the level of predictions; "
            "set loss.pointwise=0.3, the share of the loss of single rows"
        )


def _losses_of_tasks(node: Mapping[str, Any], labels: Mapping[str, str]) -> list[LossFacts]:
    """Return the facts of each label's loss. Raises UserError if a name is wrong, or a loss does not fit its label."""
    given, weights = ({} if node.get(key) is None else node[key] for key in ("losses", "weights"))
    if not isinstance(given, dict) or not isinstance(weights, dict):
        return []  # check_built reports the type
    for key, values in (("losses", given), ("weights", weights)):
        for label in values:
            if label not in labels:
                raise UserError(f"loss.{key}.{label}: the data has no label {label}{did_you_mean(str(label), labels)}")
    losses, by_name = [], losses_by_name()
    for label, kind in labels.items():
        if (name := given.get(label)) is None:
            continue  # the default of its kind, which is never within groups
        if name not in by_name:
            raise UserError(f"loss.losses.{label}={name}: no such loss{did_you_mean(str(name), by_name)}")
        loss = by_name[name]
        if kind not in loss.kinds:
            why = f"is a loss of {' and '.join(loss.kinds)} labels; this one is {kind}"
            raise UserError(f"loss.losses.{label}={name}: {why}")
        losses.append(loss)
    return losses


def _wrong_loss(cfg: RunConfig, protocol: str) -> UserError:
    """Return the error for a loss that is not a `protocol`, a class of recsys.losses."""
    return UserError(
        f"loss={target_of(cfg.loss)}: this model needs a {protocol}, such as loss={EXAMPLES[protocol]}; "
        f"your own loss must subclass recsys.losses.{protocol}"
    )


# --- metrics -------------------------------------------------------------------------------------------------


def _check_metrics(cfg: RunConfig) -> None:
    """Raise UserError if a metric needs a feature that the data lacks, or a table is frozen and decays."""
    m, data = cfg.metrics, cfg.data
    sparse = data.sparse_columns
    dense = [n for n, c in data.dense_columns.items() if c.is_number]
    hint = "; to use a column for metrics only, add it to data.sparse with model=false"
    if m.gauc is not None and m.gauc not in sparse:
        raise UserError(f"metrics.gauc={m.gauc}: no sparse feature{did_you_mean(m.gauc, sparse)}{hint}")
    kinds = [*map(type, data.label_kinds.values())]
    if m.gauc is not None and kinds and BinaryLabelColumn not in kinds:
        raise UserError(f"metrics.gauc={m.gauc}: needs a binary label, and this data has none; set metrics.gauc=null")
    if m.gauc is not None and sparse[m.gauc].is_list:
        hint = "the feature has several values per row; name a single-valued feature"
        raise UserError(f"metrics.gauc={m.gauc}: {hint}")
    decay = cfg.optim.sparse.weight_decay
    if decay and (frozen := sorted(data.frozen_tables)):
        why = f"would shrink the table {frozen[0]}, whose vectors.trainable is false; set it to 0"
        raise UserError(f"optim.sparse.weight_decay={decay}: {why}")
    for name in m.slices:
        if name not in [*sparse, *dense]:
            raise UserError(f"metrics.slices: no feature {name}{did_you_mean(name, [*sparse, *dense])}{hint}")
    if cfg.protocol.exposure and not cfg.kind.scores_rows:
        _check_exposure(cfg.protocol, data.item_table)


def _check_exposure(protocol: ProtocolConfig, items: ResolvedData | None) -> None:
    """Raise UserError if `protocol.exposure` names what the items do not have."""
    check_full_ranking(protocol, "exposure", protocol.exposure)
    if items is None:
        hint = "name the file with the items' columns in data.items.file, and the column in data.items.sparse"
        raise UserError(f"protocol.exposure={protocol.exposure}: this data has no features of items; {hint}")
    known = [*items.sparse_columns, *(n for n, c in items.dense_columns.items() if c.is_number)]
    for name in protocol.exposure:
        if name not in known:
            hint = "; to use a column for metrics only, add it to data.items.sparse with model=false"
            raise UserError(f"protocol.exposure: no feature of items {name}{did_you_mean(name, known)}{hint}")


def monitor_of(cfg: RunConfig, given: str | None) -> str:
    """Return the metric that selects the best checkpoint: `given`, or the kind's default if it is None."""
    return cfg.kind.default_monitor(cfg) if given is None else given


def check_leads(key: str, name: str, measured: list[str]) -> None:
    """Raise UserError if the metric that `key` names is not measured, or if no direction of it is better."""
    entry = metric(name)
    if name not in measured:
        why = f"no such metric{did_you_mean(name, measured)}"
    elif entry is not None and entry.better is None:
        why = f"neither large nor small values are better ({entry.meaning}); use another metric"
    else:
        return
    raise UserError(f"{key}={name}: {why}")


def check_monitors(cfg: RunConfig) -> None:
    """Raise UserError if a metric that selects checkpoints or ends a training is not measured, or its mode is wrong."""
    metrics = [f"validation/{name}" for name in cfg.kind.metric_names(cfg)]
    watching = (("checkpoint", cfg.checkpoint), ("trainer.early_stopping", cfg.trainer.early_stopping))
    for key, c in watching:
        monitor = monitor_of(cfg, c.monitor)
        if (entry := metric(monitor)) is not None and entry.of_lists:
            why = f"metrics of lists are measured after training only; use another metric, or {key}.monitor=null"
            raise UserError(f"{key}.monitor={monitor}: {why}")
        check_leads(f"{key}.monitor", monitor, metrics)
        if c.mode is not None:
            _check_mode(f"{key}.mode", c.mode, monitor)
    scheduler = cfg.optim.scheduler or {}
    if cfg.optim.watches:  # it watches checkpoint.monitor; PyTorch's default is min
        _check_mode("optim.scheduler.mode", scheduler.get("mode", "min"), monitor_of(cfg, cfg.checkpoint.monitor))


def _check_mode(key: str, mode: str, monitor: str) -> None:
    better = mode_of(monitor)
    if mode != better:
        way = "lower" if better == "min" else "higher"
        raise UserError(f"{key}={mode}: {monitor} is better when it is {way}; set {key}={better}")


def _check_calibration(cfg: RunConfig) -> None:
    """Raise UserError if no predictions can be calibrated, or there are no rows to do it by."""
    if cfg.calibration == "none":
        return
    if not (cfg.kind.scores_rows and any(label.is_calibrated for label in cfg.data.label_kinds.values())):
        why = "calibrates predictions of binary labels and numbers, and this run has neither"
        raise UserError(f"calibration={cfg.calibration}: {why}")
    if not cfg.data.split.validates:
        raise UserError(f"calibration={cfg.calibration}: needs validation rows; set data.split.validation")


def _check_steps(cfg: RunConfig) -> None:
    """Check keys of several parts that do not fit each other; the schemas know those of one part."""
    t, o = cfg.trainer, cfg.optim
    if o.sparse.clip is not None and cfg.sharding.dedup:
        why = "limits the gradients of single lookups, and sharding.dedup=true adds up those of an id first"
        raise UserError(f"optim.sparse.clip={o.sparse.clip}: {why}; set one of them to its default")
    if o.sparse.clip is not None and t.accumulate > 1:
        raise UserError(
            f"optim.sparse.clip={o.sparse.clip}: applies only to FBGEMM's fused kernels, which are not used with "
            f"trainer.accumulate={t.accumulate}; set optim.sparse.clip=null or trainer.accumulate=1"
        )
    if t.validate_from and o.scheduler is not None and o.interval == "validation" and not o.watches:
        why = "optim.scheduler steps once per validation, and would begin with the first"
        raise UserError(f"trainer.validate_from={t.validate_from:g}: {why}; set optim.interval=step")
    if cfg.loader.balance_lists and cfg.data.together:
        raise UserError("loader.balance_lists=true: data.group.together keeps rows together; set one of them to false")
    if (window := cfg.data.split.window) is not None:
        where = f"data.split.window={window:g}"
        if model_kind_of(cfg) not in ("ranking", None):
            raise UserError(f"{where}: is for models that score rows and are trained step by step; leave it out")
        if t.max_epochs > 1 or t.validate_every > 1 or t.validate_every_n_steps is not None or t.validate_from:
            raise UserError(
                f"{where}: each window is measured, then trained on once; leave out trainer.max_epochs, "
                "trainer.validate_every, trainer.validate_every_n_steps and trainer.validate_from"
            )


# --- parts ---------------------------------------------------------------------------------------------------


def _check_parts(cfg: RunConfig) -> None:
    """Check the names and the values of the parameters of models, losses and optimizers, as far as source tells."""
    parts = {
        "model": (cfg.model, BUILT_WITH),
        "loss": (cfg.loss, ()),
        "numeric": (cfg.numeric, BUILT_WITH[:1]),
        "optim.dense": (cfg.optim.dense, ("params",)),
        "optim.scheduler": (cfg.optim.scheduler, ("optimizer",)),
    }
    for path, (node, given) in parts.items():
        if node is None:
            continue
        check_target_path(node, path)
        check_against_source(node, path, given)
    for name, value in cfg.optim.dense.items():
        if isinstance(value, float) and abs(value) > FLOAT32_MAX:
            raise UserError(f"optim.dense.{name}={value}: must be at most {FLOAT32_MAX}")
    if model_kind_of(cfg) == "ranking":
        with_dims(cfg, feature_spec(cfg.data, lambda *_: 8))
