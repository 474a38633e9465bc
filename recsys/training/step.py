"""The steps of a training, chosen once: in float32 or bfloat16, or in float16 with a scaled loss."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from recsys.base.errors import NotFinite
from recsys.interface.batch import Batch
from recsys.sharding import sharded_checkpoint
from recsys.sharding.sharded_model import ShardedModel
from recsys.sharding.start_from import start_from
from recsys.training.combined_optimizer import Optimizers
from recsys.training.compiled import CompiledModel, Eager
from recsys.training.ema import Ema, averaged_weights
from recsys.training.epoch_loop import loop_of
from recsys.training.loss_scale import Float16, LossScale
from recsys.training.module_settings import Updates
from recsys.training.profiling import Timing
from recsys.training.run_state import RunState


class Step:
    """The parts of a training step, which a loop calls in this order: zero_grad, forward, backward, update.

    A step has `updates.accumulate` batches, of which the last one updates the weights by the mean of their gradients;
    the step that ends an epoch may have fewer. A Step also keeps what a training knows beside the weights: the states
    of optimizers, averages of weights, the number of steps.

    Args:
        module: the Lightning module, which steps the optimizer and logs.
        sharded: the model.
        updates: settings of the steps.
        compiled: how the model's code runs.
        timing: measures the parts.
    """

    hint = ""  # beside lower rates, where a loss is NaN or infinite

    def __init__(
        self,
        module: pl.LightningModule,
        sharded: ShardedModel,
        updates: Updates,
        compiled: Eager | CompiledModel,
        timing: Timing,
    ) -> None:
        assert updates.make_optimizer is not None
        self.optimizers = Optimizers(sharded, updates.make_optimizer)
        self.ema = None if updates.ema is None else Ema(averaged_weights(sharded.dmp, sharded.plan), updates.ema)
        self.loss = torch.zeros(())  # of the last batch
        self.first, self.last, self.logs = True, True, False  # whether a batch begins, ends and logs a step
        self._module, self._sharded, self._updates, self._compiled = module, sharded, updates, compiled
        self._timing = timing
        self._steps_before = 0  # of the runs that training starts from

    def begin(self, batch_idx: int, ends_epoch: bool, log_every_n_steps: int) -> None:
        """Begin a batch."""
        accumulate = self._updates.accumulate
        self.first = batch_idx % accumulate == 0
        self.last = ends_epoch or (batch_idx + 1) % accumulate == 0
        self.logs = (batch_idx + 1) % (log_every_n_steps * accumulate) == 0

    def zero_grad(self) -> None:
        if self.first:
            # this also passes the learning rate to FBGEMM's kernels, which read it in the forward pass
            self.optimizers.combined.zero_grad(set_to_none=True)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the part of a batch in the loss of its step, and the predictions."""
        with self._timing.part("forward"), self._compiled.context(batch.rows):
            loss, predictions = self._sharded.dmp(batch)
        self.loss = loss.detach()
        return self._part(loss, batch) / self._updates.accumulate, predictions

    def _part(self, loss: Tensor, batch: Batch) -> Tensor:
        """Return the loss that is differentiated. Raises NotFinite if it is NaN or infinite."""
        if (loss.device.type == "cpu" or self.logs) and not bool(torch.isfinite(loss)):
            low, high = batch.dense.amin(0).tolist(), batch.dense.amax(0).tolist()
            ranges = ", ".join(f"{a:.3g}..{b:.3g}" for a, b in zip(low, high, strict=True)) or "none"
            where = f"step {self._module.global_step}; ranges of the dense features in this batch: {ranges}"
            raise NotFinite(f"the loss is {float(loss)} at {where}")
        return loss

    def backward(self, loss: Tensor) -> None:
        with self._timing.part("backward"):
            loss.backward()

    def update(self) -> None:
        """Update the weights if the batch ends a step."""
        if not self.last:
            return
        with self._timing.part("optimizer"):
            if self._updates.clip_norm is not None:
                norm = torch.nn.utils.clip_grad_norm_(list(self.optimizers.dense.values()), self._updates.clip_norm)
                self._log("grad_norm", norm)
            self.optimizers.combined.step()
            loop_of(self._module.trainer).count_step()
            if self.ema is not None:
                self.ema.update()
            for scheduler in self.schedulers() if self._updates.by_step else ():
                scheduler.step()
        if self._updates.by_step:
            group = self.optimizers.groups()["dense"][0]
            self._log("lr_factor", group["lr"] / (group["initial_lr"] or 1))

    def _log(self, name: str, value: Tensor | float) -> None:
        if self.logs:
            self._module.log(f"train/{name}", value, rank_zero_only=True)

    def schedulers(self) -> list[Any]:
        schedulers = self._module.lr_schedulers()
        return schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []

    @property
    def facts(self) -> dict[str, Any]:
        """What metrics.json says of the steps."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizers.state_dict() | ({"steps_before": self._steps_before} if self._steps_before else {})
        return state if self.ema is None else state | {"ema": self.ema.state_dict()}

    def load(self, path: Path, run_state: RunState) -> None:
        """Restore weights and state of the run's own checkpoint. Collective."""
        state = dict(run_state.state)
        self._steps_before = state.get("steps_before", 0)
        steps = self._steps_before + state["global_step"]
        sharded_checkpoint.load_all(path, self._sharded, self.optimizers.rows, steps)
        self.optimizers.load_state_dict(state, self.schedulers())
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self._count_fused(self._steps_before + run_state.batches)

    def start_from(self, path: Path, fresh: Mapping[str, np.ndarray]) -> None:
        """Take over weights and states of another run's checkpoint. Collective.

        fresh: rows that have new values, by vocabulary
        """
        start_from(path, self._sharded, self.optimizers.rows, fresh)
        state = RunState.load(path).state
        if "ema" in state:
            Ema.put(averaged_weights(self._sharded.dmp, self._sharded.plan), state["ema"])
        if self.ema is not None:
            self.ema.restart()
        self.optimizers.start_from(state["dense_optimizer"])
        self._steps_before = state["global_step"] + state.get("steps_before", 0)
        self._count_fused(self._steps_before)
        if self.optimizers.rows is not None:
            self.optimizers.rows.set_step(self._steps_before)

    def _count_fused(self, steps: int) -> None:
        """Tell FBGEMM how many steps its tables have had, for Adam's bias correction."""
        if self._sharded.optimizer.counts_steps:
            self._sharded.dmp.fused_optimizer.set_optimizer_step(steps)


class Float16Step(Step):
    """A step in float16, whose loss is scaled; it is skipped if a gradient overflows."""

    hint = ", or trainer.precision=bf16-mixed"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.scale = LossScale(self._sharded.dmp, self._updates.loss_scale)
        self._dense = list(self.optimizers.dense.values())

    def _part(self, loss: Tensor, batch: Batch) -> Tensor:
        return loss * self.scale.value

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        with self._timing.part("backward"):
            self.scale.release(self._dense)

    def update(self) -> None:
        if self.last:
            self._log("loss_scale", self.scale.value)
            try:
                unscaled = self.scale.end_step(self._dense)
            except NotFinite as e:
                raise NotFinite(f"{e}, at step {self._module.global_step}") from e
            if not unscaled:
                return  # the step is skipped
        super().update()

    @property
    def facts(self) -> dict[str, Any]:
        return {"skipped_steps": self.scale.skipped}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"loss_scale": self.scale.state_dict()}

    def load(self, path: Path, run_state: RunState) -> None:
        super().load(path, run_state)
        if "loss_scale" in run_state.state:
            self.scale.load_state_dict(run_state.state["loss_scale"])
            self._count_fused(self._steps_before + run_state.batches - self.scale.skipped)


def step_of(updates: Updates) -> type[Step]:
    """Return the kind of steps that settings ask for."""
    return Float16Step if updates.precision == Float16.precision else Step
