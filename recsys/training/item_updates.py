"""Warn before the training if Adam cannot move item vectors far enough from their random initial values.

Adam changes an element of a table's row by about the learning rate, at most, in each step that looks the row up. An
item is looked up about once for each of its interactions, so the number of steps that train its vector depends on the
interactions per item and on the epochs, not on the number of steps of the run (experiments/item_counts). With
optim.sparse.every_row, the other steps move it, too.
"""

import math

from recsys.config.run_config import RunConfig

LEAST = 2.0  # distance that item vectors must be able to move, in standard deviations of their initial values


def short_training(cfg: RunConfig, interactions: float, epochs: float) -> str | None:
    """Return a warning if item vectors cannot move by LEAST deviations of their initial values, otherwise None.

    Args:
        cfg: config of a retrieval model that is trained step by step.
        interactions: mean number of training interactions per item.
        epochs: number of epochs of the whole training.
    """
    deviation, sparse = cfg.model.get("init_std"), cfg.optim.sparse
    if not deviation or "adam" not in sparse.name or sparse.every_row or not sparse.lr or not interactions:
        return None
    distance = sparse.lr * interactions * epochs
    if distance >= LEAST * deviation:
        return None
    wanted = math.ceil(LEAST * deviation / (sparse.lr * interactions))
    return (
        f"optim.sparse.lr={sparse.lr} is too low for {interactions:.3g} interactions per item and {epochs:.3g} epochs: "
        f"Adam moves item vectors by at most {distance:.2g} (model.init_std={deviation}); set "
        f"trainer.max_epochs={wanted} or more, or raise optim.sparse.lr and optim.dense.lr"
    )
