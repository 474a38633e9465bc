"""Combined optimizer of fused tables, unfused tables and dense weights, and its learning rates."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.sharding.sharded_model import ShardedModel
from recsys.sharding.touched_rows import RowOptimizer
from recsys.training.module_settings import MakeOptimizer

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)  # which have a kernel for a weight or for all


class Optimizers:
    """The optimizers of a sharded task.

    Args:
        sharded: the model.
        make_dense: builds the optimizer of the dense weights.

    Attributes:
        dense: dense parameters by name.
        rows: optimizer of the tables that no fused kernel updates, or None.
        combined: one optimizer over all parameters, which Lightning steps.
    """

    def __init__(self, sharded: ShardedModel, make_dense: MakeOptimizer) -> None:
        tables, sparse = sharded.tables, sharded.optimizer
        self.dense, rows = split_parameters(sharded.dmp, sharded.plan)
        if rows and sparse.config.clip is not None:
            name = next(t.name for t in tables.values() if t.parameter in rows)
            raise UserError(
                f"optim.sparse.clip={sparse.config.clip}: applies only to FBGEMM's fused kernels, which {len(rows)} "
                f"tables do not use here ({name}, ...); choose another optim.sparse.name or sharding, or set it to null"
            )
        made: list[Optimizer] = []  # KeyedOptimizerWrapper does not give its optimizer back

        def make(parameters: list[Tensor]) -> Optimizer:
            made.append(_fused(make_dense(parameters)))
            return made[0]

        self._wrapper = KeyedOptimizerWrapper(self.dense, make)
        [self._dense_optimizer] = made
        parts: list[Any] = [sharded.dmp.fused_optimizer, self._wrapper]
        self.rows: RowOptimizer | None = None
        if rows:
            shares = {rows[t.parameter]: t.dim / t.width for t in tables.values() if t.parameter in rows}
            self.rows = row_optimizer = RowOptimizer(list(rows.values()), sparse, shares)
            parts.append(KeyedOptimizerWrapper(rows, lambda _: row_optimizer))  # type: ignore[arg-type,return-value]
        self.combined = CombinedOptimizer(parts)
        for group in self.combined.param_groups:
            group.setdefault("initial_lr", group["lr"])  # type: ignore[attr-defined]

    def groups(self) -> dict[str, list[Any]]:
        """Return the parameter groups of dense weights and of tables; the plan decides how many the tables have."""
        dense = self._wrapper.param_groups
        ids = {id(g) for g in dense}
        return {"dense": list(dense), "sparse": [g for g in self.combined.param_groups if id(g) not in ids]}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the dense optimizer, and of each kind of rates the schedule's factor, now and initially.

        The tables' optimizer state is saved with the tables.
        """
        return {
            "dense_optimizer": self._dense_optimizer.state_dict(),
            "lr": {
                kind: [g["lr"] / g["initial_lr"] if g["initial_lr"] else 1.0, g["lr"], g["initial_lr"]]
                for kind, groups in self.groups().items()
                for g in groups[:1]
            },
        }

    def start_from(self, state: dict[str, Any]) -> None:
        """Take over the state of another run's dense optimizer, such as Adam's averages, but no rates.

        An optimizer of another kind starts afresh.
        """
        optimizer = self._dense_optimizer
        own = optimizer.state_dict()
        if [g.keys() for g in state["param_groups"]] != [g.keys() for g in own["param_groups"]]:
            say("optim.dense: is of another kind than that of start_from, and starts afresh")
            return
        optimizer.load_state_dict({"state": state["state"], "param_groups": own["param_groups"]})
        self._wrapper.param_groups, self._wrapper.state = optimizer.param_groups, optimizer.state

    def load_state_dict(self, state: dict[str, Any], schedulers: list[Any]) -> None:
        """Restore what `state_dict` returned, and adapt the saved scheduler states to the current parameter groups."""
        optimizer = self._dense_optimizer
        for group, own in zip(state["dense_optimizer"]["param_groups"], optimizer.param_groups, strict=True):
            group |= {key: own[key] for key in ("fused", "foreach") if key in own}  # of this device, not the writer's
        optimizer.load_state_dict(state["dense_optimizer"])
        # load_state_dict replaced the parameter groups; the wrapper and the scheduler must use the new ones
        self._wrapper.param_groups, self._wrapper.state = optimizer.param_groups, optimizer.state
        for kind, saved in state["lr"].items():
            for group in self.groups()[kind] if saved else ():  # factor times initial rate may be the next number
                group["lr"] = saved[1] if saved[2:] == [group["initial_lr"]] else group["initial_lr"] * saved[0]
        rates = [g["lr"] for g in self.combined.param_groups]  # type: ignore[index]
        for saved, scheduler in zip(state.get("lr_schedulers", ()), schedulers, strict=False):
            _fit_scheduler(saved, scheduler, rates)


def _fit_scheduler(saved: dict[str, Any], fresh: Any, rates: list[float]) -> None:
    """Replace the per-group learning rates in a saved scheduler state by the rates of the current groups.

    The current rates follow from the config.
    """
    for key in ("base_lrs", "min_lrs", "max_lrs"):
        if key in saved:
            saved[key] = getattr(fresh, key)
    saved["_last_lr"] = list(rates)
    for inner, other in zip(saved.get("_schedulers", ()), getattr(fresh, "_schedulers", ()), strict=False):
        _fit_scheduler(inner, other, rates)


def _fused(optimizer: Optimizer) -> Optimizer:
    """Let an optimizer of PyTorch update weights by its fused kernels, unless its config chooses otherwise.

    On GPUs one kernel updates all weights; on CPUs one pass over a weight does what is a dozen passes otherwise.
    """
    if type(optimizer) in FUSED:
        for group in (*optimizer.param_groups, optimizer.defaults):
            if group["fused"] is None and group["foreach"] is None and not group.get("differentiable"):
                group["fused"] = True
    return optimizer


def split_parameters(
    dmp: DistributedModelParallel, plan: list[dict[str, Any]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return dense parameters and tables that RowOptimizer updates, by name; fused tables are in neither."""
    kernels = {e["parameter"]: e["kernel"] for e in plan}
    dense: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for name, p in dmp.named_parameters():
        if name not in kernels:
            dense[name] = p
        elif kernels[name] == "dense" and p.dim() == 2:
            rows[name] = p
    return dense or {"none": torch.zeros(0)}, rows  # optimizers refuse an empty list
