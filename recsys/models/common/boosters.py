"""Gradient-boosted trees of three libraries behind one interface: LightGBM, XGBoost and CatBoost.

Each is imported when it is first used. R rows, C columns, L scores of a row: one, or one for each class.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from recsys.base.packages import check_extra

OnTree = Callable[[float | None], None]  # called after each tree with the loss of the validation rows, if there are any


@dataclass(frozen=True)
class GroupOrder:
    """The order of the rows of each group is fitted, by LambdaMART (see `recsys.losses.Pairwise`).

    metric: the name of what is measured on the validation rows and decides when to stop; the higher, the better
    measure: returns it for the group, the score, the label and the weight of R rows, (R,) each; weight may be None
    """

    metric: str
    measure: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], float]


@dataclass(frozen=True)
class BoosterSettings:
    """Size of the trees and the training. The libraries' own defaults hold for all that is not here.

    trees: number of trees at most
    leaves: number of leaves of a tree at most
    learning_rate: share of a tree that is added to the sum
    min_rows: least number of rows of a leaf; XGBoost counts their second derivatives instead
    l2: regularisation of the leaves' values
    row_share, column_share: share of rows and of columns that each tree sees
    patience: stop after so many trees without a lower loss of the validation rows; None never stops
    classes: number of classes of the label; 0 if it is binary, None if it is a number
    order: fits the order of the rows of each group instead of their labels; None fits labels
    seed, threads: seed of row_share and column_share; number of threads
    """

    trees: int
    leaves: int
    learning_rate: float
    min_rows: int
    l2: float
    row_share: float
    column_share: float
    patience: int | None
    classes: int | None
    seed: int
    threads: int
    order: GroupOrder | None = None


@dataclass(frozen=True)
class TreeColumns:
    """The C columns of a matrix.

    names: their names
    rows: of each column, the number of rows of its table if it holds ids of categories, otherwise None
    """

    names: tuple[str, ...]
    rows: tuple[int | None, ...]

    @property
    def categorical(self) -> tuple[int, ...]:
        """The indices of the columns that hold ids of categories."""
        return tuple(i for i, n in enumerate(self.rows) if n is not None)


@dataclass(frozen=True)
class TreeRows:
    """Rows of one label: matrix (R, C), label (R,), weight (R,) or None, float32; group (R,), equal for neighbours."""

    matrix: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None
    group: np.ndarray | None = None

    @property
    def group_sizes(self) -> np.ndarray | None:
        """The number of rows of each group, (G,); None without groups."""
        if self.group is None:
            return None
        first = np.flatnonzero(np.append(True, self.group[1:] != self.group[:-1]))
        return np.diff(np.append(first, len(self.group)))


@dataclass(frozen=True)
class Fitting:
    """The rows, the settings and the callback with which trees are fitted.

    columns: names of the columns, and which of them hold categories
    training: the training rows
    validation: rows that decide when to stop; None keeps all trees
    settings: size of the trees and the training
    on_tree: called after each tree with the loss of the validation rows, or None
    """

    columns: TreeColumns
    training: TreeRows
    validation: TreeRows | None
    settings: BoosterSettings
    on_tree: OnTree

    @property
    def patience(self) -> int | None:
        """The number of trees without a lower loss of the validation rows that end the training; None for no end."""
        return None if self.validation is None else self.settings.patience


@dataclass(frozen=True)
class Trees:
    """Fitted trees.

    content: in the library's own format
    count: the number of trees that are used, for one score
    loss: the loss of the validation rows with so many trees, or what `GroupOrder` measures; None without such rows
    """

    content: bytes
    count: int
    loss: float | None


class Booster(Protocol):
    """A library. suffix: end of the names of its files"""

    suffix: str

    def fit(self, given: Fitting) -> Trees:
        """Fit trees to the training rows, and keep those up to the lowest loss of the validation rows."""
        ...

    def load(self, content: bytes) -> Any:
        """Return the trees in the library's own class."""
        ...

    def scores(self, trees: Any, columns: TreeColumns, matrix: np.ndarray, threads: int) -> np.ndarray:
        """Return the sums of the trees' values before a sigmoid or a softmax: (R,), or (R, L) of classes.

        Args:
            trees: in the library's own class, as `load` returns them.
            columns: the columns that the trees were fitted to.
            matrix: the rows, (R, C).
        """
        ...

    def forest(self, trees: Any) -> Any:
        """Return the trees as a model of Treelite, for export. Raises NotImplementedError if Treelite has none."""
        ...


class LightGBM:
    """Ke et al., LightGBM: A Highly Efficient Gradient Boosting Decision Tree, 2017, https://lightgbm.readthedocs.io."""

    suffix = "txt"

    def fit(self, given: Fitting) -> Trees:
        import lightgbm as lgb

        s, columns = given.settings, given.columns
        params: dict[str, Any] = {
            **_by_label(s.classes, ("binary", "regression", "multiclass"), "objective"),
            **_by_label(s.classes, ("binary_logloss", "rmse", "multi_logloss"), "metric"),
            **({} if s.order is None else {"objective": "lambdarank", "metric": "None"}),
            **({"num_class": s.classes} if s.classes else {}),
            **{"num_leaves": s.leaves, "learning_rate": s.learning_rate, "min_data_in_leaf": s.min_rows},
            **{"lambda_l2": s.l2, "feature_fraction": s.column_share, "seed": s.seed, "num_threads": s.threads},
            **({"bagging_fraction": s.row_share, "bagging_freq": 1} if s.row_share < 1 else {}),
            # without force_row_wise, LightGBM measures which layout is faster, and may find another one the next time
            **{"deterministic": True, "force_row_wise": True, "verbose": -1},
        }

        def data(rows: TreeRows, reference: Any = None) -> Any:
            categorical = list(columns.categorical)
            about: dict[str, Any] = {
                "weight": rows.weight,
                "group": rows.group_sizes,
                "categorical_feature": categorical,
            }
            return lgb.Dataset(rows.matrix, rows.label, reference=reference, **about)

        def measure(scores: np.ndarray, _: object) -> tuple[str, float, bool]:
            rows, order = given.validation, s.order
            assert rows is not None and order is not None and rows.group is not None
            return order.metric, order.measure(rows.group, scores, rows.label, rows.weight), True

        def report(env: Any) -> None:
            given.on_tree(env.evaluation_result_list[0][2] if env.evaluation_result_list else None)

        train = data(given.training)
        callbacks: list[Any] = [report]
        if given.patience is not None:
            callbacks.append(lgb.early_stopping(given.patience, verbose=False))
        watched = [] if given.validation is None else [data(given.validation, train)]
        feval = None if s.order is None else measure
        booster = lgb.train(params, train, s.trees, valid_sets=watched, feval=feval, callbacks=callbacks)
        count = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
        best = [loss for of in booster.best_score.values() for loss in of.values()]
        return Trees(booster.model_to_string(num_iteration=count).encode(), count, best[0] if best else None)

    def load(self, content: bytes) -> Any:
        import lightgbm as lgb

        return lgb.Booster(params={"verbose": -1}, model_str=content.decode())

    def scores(self, trees: Any, columns: TreeColumns, matrix: np.ndarray, threads: int) -> np.ndarray:
        scores: np.ndarray = trees.predict(matrix, raw_score=True, num_threads=threads)
        return scores

    def forest(self, trees: Any) -> Any:
        import treelite

        return treelite.frontend.from_lightgbm(trees)


class XGBoost:
    """Chen & Guestrin, XGBoost: A Scalable Tree Boosting System, 2016, https://arxiv.org/abs/1603.02754."""

    suffix = "ubj"

    def fit(self, given: Fitting) -> Trees:
        import xgboost as xgb

        s, columns = given.settings, given.columns
        params: dict[str, Any] = {
            **_by_label(s.classes, ("binary:logistic", "reg:squarederror", "multi:softprob"), "objective"),
            **_by_label(s.classes, ("logloss", "rmse", "mlogloss"), "eval_metric"),
            **({"num_class": s.classes} if s.classes else {}),
            **{"tree_method": "hist", "grow_policy": "lossguide", "max_leaves": s.leaves, "max_depth": 0},
            **{"learning_rate": s.learning_rate, "min_child_weight": s.min_rows, "reg_lambda": s.l2},
            **{"subsample": s.row_share, "colsample_bytree": s.column_share, "seed": s.seed, "nthread": s.threads},
            "verbosity": 0,
        }
        # Before 3.4, min_child_weight also left rare categories out of splits. Splits by all of them fit noise, which
        # LightGBM limits by cat_l2=10, among others.
        if columns.categorical and tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 4):
            params |= {"max_cat_threshold": 8, "reg_lambda": s.l2 + 10}

        class XGBoostReport(xgb.callback.TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                losses = next(iter(evals_log["validation"].values())) if evals_log else [None]
                given.on_tree(losses[-1])
                return False

        def data(rows: TreeRows, ref: Any = None) -> Any:
            types, threads = _types(columns), {"nthread": s.threads}
            about = {"weight": rows.weight, "feature_types": types, "enable_categorical": True, **threads}
            return xgb.QuantileDMatrix(rows.matrix, rows.label, ref=ref, **about)

        train = data(given.training)
        callbacks: list[Any] = [XGBoostReport()]
        if given.patience is not None:
            callbacks.append(xgb.callback.EarlyStopping(given.patience, save_best=True))
        watched = [] if given.validation is None else [(data(given.validation, train), "validation")]
        booster = xgb.train(params, train, s.trees, evals=watched, callbacks=callbacks, verbose_eval=False)
        loss = None
        with suppress(AttributeError):  # without early stopping, there is none
            loss = float(booster.best_score)
        return Trees(bytes(booster.save_raw("ubj")), booster.num_boosted_rounds(), loss)

    def load(self, content: bytes) -> Any:
        import xgboost as xgb

        booster = xgb.Booster()
        booster.load_model(bytearray(content))
        return booster

    def scores(self, trees: Any, columns: TreeColumns, matrix: np.ndarray, threads: int) -> np.ndarray:
        import xgboost as xgb

        data = xgb.DMatrix(matrix, feature_types=_types(columns), enable_categorical=True, nthread=threads)
        trees.set_param({"nthread": threads})
        scores: np.ndarray = trees.predict(data, output_margin=True)
        return scores

    def forest(self, trees: Any) -> Any:
        import treelite

        return treelite.frontend.from_xgboost_ubjson(bytes(trees.save_raw("ubj")))


class CatBoost:
    """Prokhorenkova et al., CatBoost: unbiased boosting with categorical features, 2018, https://arxiv.org/abs/1706.09516."""

    suffix = "cbm"

    def fit(self, given: Fitting) -> Trees:
        import catboost

        s, columns = given.settings, given.columns
        loss = _by_label(s.classes, ("Logloss", "RMSE", "MultiClass"), "loss_function")["loss_function"]
        stops = given.patience is not None
        model = catboost.CatBoost(
            {
                **{"loss_function": loss, "iterations": s.trees, "learning_rate": s.learning_rate},
                **({"classes_count": s.classes} if s.classes else {}),
                **{"grow_policy": "Lossguide", "max_leaves": s.leaves, "depth": 16, "min_data_in_leaf": s.min_rows},
                **{"l2_leaf_reg": s.l2, "rsm": s.column_share, "random_seed": s.seed, "thread_count": s.threads},
                **({"bootstrap_type": "Bernoulli", "subsample": s.row_share} if s.row_share < 1 else {}),
                **({} if s.row_share < 1 else {"bootstrap_type": "No"}),
                **({"od_type": "Iter", "od_wait": s.patience} if stops else {}),
                **{"use_best_model": stops, "allow_writing_files": False, "logging_level": "Silent"},
            }
        )

        class CatBoostReport:
            def after_iteration(self, info: Any) -> bool:
                given.on_tree(info.metrics["validation"][loss][-1] if "validation" in info.metrics else None)
                return True

        def data(rows: TreeRows) -> Any:
            return catboost.Pool(
                _frame(rows.matrix, columns), rows.label, weight=rows.weight, cat_features=list(columns.categorical)
            )

        watched = None if given.validation is None else data(given.validation)
        model.fit(data(given.training), eval_set=watched, callbacks=[CatBoostReport()])
        best = (model.get_best_score() or {}).get("validation", {}).get(loss)
        with TemporaryDirectory(prefix="recsys-gbm-") as folder:  # CatBoost writes to files only
            file = Path(folder) / f"trees.{self.suffix}"
            model.save_model(str(file))
            return Trees(file.read_bytes(), model.tree_count_, best)

    def load(self, content: bytes) -> Any:
        import catboost

        return catboost.CatBoost().load_model(blob=content)

    def scores(self, trees: Any, columns: TreeColumns, matrix: np.ndarray, threads: int) -> np.ndarray:
        frame = _frame(matrix, columns)
        scores: np.ndarray = trees.predict(frame, prediction_type="RawFormulaVal", thread_count=threads)
        return scores

    def forest(self, trees: Any) -> Any:
        raise NotImplementedError(
            "library=catboost has no form as a graph; train library=lightgbm or xgboost to export"
        )


BOOSTERS: dict[str, Booster] = {"lightgbm": LightGBM(), "xgboost": XGBoost(), "catboost": CatBoost()}


def booster_of(library: str, *, load: bool = True) -> Booster:
    """Return a library. Raises ValueError if its package is not installed or cannot be loaded.

    Args:
        load: import the package. Otherwise only its files are looked for, since LightGBM imports pandas and
            scikit-learn, which takes longer than a check of a config.
    """
    check_extra("gbm", f"library={library}", library)
    try:
        if load:
            import_module(library)
    except (ImportError, OSError) as e:  # a shared library may be missing
        why = str(e).splitlines()[0]
        raise ValueError(f"library={library}: the Python package {library} cannot be loaded: {why}") from e
    return BOOSTERS[library]


def _by_label(classes: int | None, names: tuple[str, str, str], key: str) -> dict[str, Any]:
    """Return the name for a binary label, a number or classes under the key."""
    binary, number, multiclass = names
    return {key: number if classes is None else multiclass if classes else binary}


def _types(columns: TreeColumns) -> list[str]:
    """Return XGBoost's types of columns: c of categories, q of quantities."""
    return ["c" if i in columns.categorical else "q" for i in range(len(columns.names))]


def _frame(matrix: np.ndarray, columns: TreeColumns) -> Any:
    """Return the matrix as a pandas frame, since CatBoost takes categories as whole numbers only."""
    import pandas as pd

    names = range(len(columns.names))
    return pd.DataFrame({i: matrix[:, i].astype(np.int32) if i in columns.categorical else matrix[:, i] for i in names})
