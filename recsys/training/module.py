"""The LightningModule: builds and shards the task, trains and measures it, writes and reads checkpoints."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed import DistributedModelParallel

from recsys.base.console import say_once
from recsys.base.errors import NotFinite, UserError
from recsys.batch import Batch
from recsys.distributed.ranks import fail_together, first_problem
from recsys.evaluation.evaluators import Evaluator, LabelsEvaluator
from recsys.evaluation.metrics_table import monitored
from recsys.losses import LabelLosses
from recsys.models.common.items import NextItems
from recsys.models.common.layers import has_batch_norm
from recsys.sharding import sharded_checkpoint
from recsys.sharding.go_on import go_on
from recsys.sharding.sharded_model import Placement, ShardedModel
from recsys.sharding.touched_rows import RowOptimizer
from recsys.task import RetrievalTask, Task
from recsys.training.combined_optimizer import Optimizers
from recsys.training.compiled import CompiledModel, compiled_model, recompute_blocks
from recsys.training.ema import Ema, averaged_weights
from recsys.training.loss_scale import Float16, LossScale
from recsys.training.module_settings import Beginning, Updates
from recsys.training.pipelines import KINDS, PREFETCH, Pipeline, StepParts
from recsys.training.profiling import Timing
from recsys.training.run_state import RunState


class RecsysModule(pl.LightningModule):
    """LightningModule that trains a Task sharded by DistributedModelParallel.

    Args:
        make_task: builds the task with its tables on the meta device; weights are allocated when the tables are
            sharded.
        placement: settings of the tables and their sharding.
        updates: settings of the optimizers and schedules.
        beginning: what a training begins with.
        evaluator: computes the metrics; a LabelsEvaluator by default.
        log_every_n_steps: number of steps between two logged losses.
    """

    sharded: ShardedModel  # made by setup_model
    dmp: DistributedModelParallel  # that of `sharded`

    def __init__(
        self,
        make_task: Callable[[], Task | RetrievalTask],
        placement: Placement,
        updates: Updates | None = None,
        beginning: Beginning | None = None,
        *,
        evaluator: Evaluator | None = None,
        log_every_n_steps: int = 50,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._make_task, self._placement = make_task, placement
        self._updates, self._beginning = updates or Updates(), beginning or Beginning()
        self.evaluator: Evaluator = evaluator or LabelsEvaluator()
        self._log_every = log_every_n_steps
        self.ema: Ema | None = None
        self.timing = Timing(torch.device("cpu"))
        # whether the optimizer has stepped since the last batch (False while gradients accumulate)
        self.stepped = True
        # whether the current batch is the first one of a step, and whether it is logged
        self._first, self._logs = True, False
        self._pipeline: Pipeline | None = None
        self._pipeline_kind: str | None = None  # sparse_dist or prefetch
        self.last_checkpoint: Path | None = None
        self._steps_before = 0  # of the runs that training goes on from
        self._optimizers: Optimizers | None = None
        self._loss: Tensor | None = None
        self.compiled: CompiledModel | None = None
        self.loss_scale: LossScale | None = None

    @property
    def row_optimizer(self) -> RowOptimizer | None:
        """The optimizer of tables that no fused kernel updates; None if there are no such tables."""
        return None if self._optimizers is None else self._optimizers.rows

    def configure_model(self) -> None:
        if not hasattr(self, "sharded"):
            self.setup_model(self.trainer.strategy.root_device)

    def setup_model(self, device: torch.device) -> None:
        """Build, plan and shard the task over the processes of the default group."""
        seed = torch.initial_seed()
        dtype = self._placement.sharding.table_dtype
        if dtype != "fp32" and device.type == "cpu" and self._updates.make_optimizer is not None:
            why = "CPUs round to the nearest number, so that small steps of large weights are lost"
            say_once(f"sharding.table_dtype={dtype}: {why}; GPUs round stochastically")
        self.sharded = ShardedModel(
            self._make_task(),
            self._placement,
            device,
            accumulate=self._updates.accumulate,
            prefetch=self._updates.pipeline == PREFETCH,
            bfloat16=self._updates.precision == "bf16-mixed",
        )
        self.dmp, task = self.sharded.dmp, self.sharded.task
        self.timing = Timing(device)
        if isinstance(task, RetrievalTask) and task.candidates is not None:
            task.set_candidates(task.candidates.to(device))
            if (read_pairs := self._beginning.read_pairs) is not None and task.model.reads_interactions:
                task.model.set_interactions(read_pairs(task.model.user).to(device))
        if self._updates.pipeline in KINDS:
            if (problem := Pipeline.problem(task)) is None:
                self._pipeline_kind = self._updates.pipeline
            else:
                does = f"{type(task.model).__name__} trains with pipeline=base: {problem}"
                say_once(f"trainer.pipeline={self._updates.pipeline}: {does}")
        if self._updates.precision == Float16.precision:
            self.loss_scale = LossScale(self.dmp, self._updates.loss_scale)
        if self._updates.recompute and not recompute_blocks(task.model):
            say_once(f"trainer.recompute=true: has no effect on {type(task.model).__name__}, which has no blocks")
        self.compiled = compiled_model(task, self._updates, device, self._placement.batch_size)
        torch.manual_seed(seed + dist.get_rank())  # from here on, each rank draws its own random numbers

    # --- optimizers ----------------------------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        assert self._updates.make_optimizer is not None
        self._optimizers = Optimizers(self.sharded, self._updates.make_optimizer)
        if self._updates.ema is not None:
            self.ema = Ema(averaged_weights(self.dmp, self.sharded.plan), self._updates.ema)
        combined = self._optimizers.combined
        if self._updates.make_scheduler is None:
            return combined
        return [combined], [self._updates.make_scheduler(combined)]

    # --- steps ---------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        task = self.sharded.task
        if isinstance(task, RetrievalTask) and isinstance(task.model, NextItems) and self._pipeline_kind is None:
            self._loader.make_queries = task.model.queries_ahead

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch  # the loader has copied it

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        accumulate = self._updates.accumulate
        self._first = batch_idx % accumulate == 0
        self._logs = (batch_idx + 1) % (self._log_every * accumulate) == 0
        self.stepped = (batch_idx + 1) % accumulate == 0 or self.trainer.is_last_batch
        if batch.rows == 1 and has_batch_norm(self.dmp):
            why = "a batch has 1 row in each process, and batch normalisation needs 2 or more"
            fail_together(UserError(f"trainer.batch_size: {why}; set model.batch_norm=false or add training rows"))
        if self._pipeline is None and self._pipeline_kind is not None:
            parts = StepParts(self._zero_grad, self._forward, self._backward, self._step)
            self._pipeline = Pipeline(self._pipeline_kind, self.dmp, parts, self.device, self._loader.upcoming)
        if self._pipeline is not None:
            self._pipeline.train(batch)
        else:
            self._zero_grad()
            loss, _ = self._forward(batch.to(self.device))
            self._backward(loss)
            self._step()
        assert self._loss is not None
        if self._logs:
            self.log("train/loss", self._loss, rank_zero_only=True)
            loss_of = getattr(self.sharded.task, "loss", None)
            for name, value in loss_of.logged().items() if isinstance(loss_of, LabelLosses) else ():
                self.log(f"train/{name}", value, rank_zero_only=True)
        return self._loss

    @property
    def _loader(self) -> Any:
        return self.trainer.train_dataloader

    def _zero_grad(self) -> None:
        if self._first:
            # this also passes the learning rate to FBGEMM's kernels, which read it in the forward pass
            self.optimizers().zero_grad(set_to_none=True)  # type: ignore[union-attr]

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch divided by the number of batches of a step, and the predictions."""
        with self.timing.part("forward"), self._stance(batch.rows):
            loss, predictions = self.dmp(batch)
        self._loss = loss.detach()
        if self.loss_scale is not None:
            return loss * (self.loss_scale.value / self._updates.accumulate), predictions
        if (loss.device.type == "cpu" or self._logs) and not bool(torch.isfinite(loss)):
            low, high = batch.dense.amin(0).tolist(), batch.dense.amax(0).tolist()
            ranges = ", ".join(f"{a:.3g}..{b:.3g}" for a, b in zip(low, high, strict=True)) or "none"
            batch_ranges = f"ranges of the dense features in this batch: {ranges}"
            raise NotFinite(f"the loss is {float(loss)} at step {self.global_step}; {batch_ranges}; {self._advice()}")
        return loss / self._updates.accumulate, predictions

    def _backward(self, loss: Tensor) -> None:
        with self.timing.part("backward"):
            self.manual_backward(loss)

    def _step(self) -> None:
        scale = self.loss_scale
        if scale is not None:
            assert self._optimizers is not None
            dense = list(self._optimizers.dense.values())
            with self.timing.part("backward"):
                scale.release(dense)
            if self.stepped:
                if self._logs:
                    self.log("train/loss_scale", scale.value, rank_zero_only=True)
                try:
                    unscaled = scale.end_step(dense)
                except NotFinite as e:
                    advice = f"{self._advice()}, or trainer.precision=bf16-mixed"
                    raise NotFinite(f"{e}, at step {self.global_step}; {advice}") from e
                if not unscaled:
                    return  # the step is skipped
        if not self.stepped:
            return
        assert self._optimizers is not None
        with self.timing.part("optimizer"):
            if self._updates.clip_norm is not None:
                norm = torch.nn.utils.clip_grad_norm_(list(self._optimizers.dense.values()), self._updates.clip_norm)
                if self._logs:
                    self.log("train/grad_norm", norm, rank_zero_only=True)
            self.optimizers().step()  # type: ignore[union-attr]
            if self.ema is not None:
                self.ema.update()
            for scheduler in self._schedulers() if self._updates.by_step else ():
                scheduler.step()
        if self._updates.by_step and self._logs:
            group = self._optimizers.groups()["dense"][0]
            self.log("train/lr_factor", group["lr"] / (group["initial_lr"] or 1), rank_zero_only=True)

    def _stance(self, rows: int) -> AbstractContextManager[None]:
        return nullcontext() if self.compiled is None else self.compiled.context(rows, self.training)

    def _schedulers(self) -> list[Any]:
        schedulers = self.lr_schedulers()
        return schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []

    def _advice(self) -> str:
        good = self.last_checkpoint or "none yet"
        return f"last good checkpoint: {good}; try a lower optim.sparse.lr or optim.dense.lr"

    # --- evaluation ----------------------------------------------------------------------------------

    def _begin(self, loader: Any, brief: bool = False) -> None:
        if self._pipeline is not None:
            self._pipeline.drain()
        self._refresh()
        self.evaluator.begin(self.sharded.task, loader, brief)

    def _refresh(self) -> None:
        """Let a model that trains compute the buffers that evaluation reads."""
        task = self.sharded.task
        reads = isinstance(task, RetrievalTask) and task.model.reads_interactions
        if reads and self.trainer.state.fn == "fit":
            task.model.refresh()

    def _evaluate(self, batch: Batch) -> None:
        with self._stance(batch.rows):
            _, output = self.dmp(batch)
        self.evaluator.update(self.sharded.task, output, batch)

    def _log_metrics(self, split: str) -> None:
        try:
            metrics = self.evaluator.compute()
        except NotFinite as e:
            trains = self.trainer.state.fn == "fit"
            after = f"after step {self.global_step}" if trains else "with the weights of this checkpoint"
            advice = self._advice() if trains else "train again with a lower optim.sparse.lr or optim.dense.lr"
            fail_together(NotFinite(f"{split}: {e} {after}; {advice}"))
        if (why := self.evaluator.undefined(metrics)) is not None:
            say_once(f"{split}: {why}")
        for name, value in metrics.items():
            self.log(f"{split}/{name}", torch.tensor(value, dtype=torch.float64), rank_zero_only=False)

    def _swap(self) -> None:
        """During training, exchange the dense weights and their averages, before and after a validation."""
        if self.ema is not None and self.trainer.state.fn == "fit":
            self.ema.swap()

    def on_validation_epoch_start(self) -> None:
        self._swap()
        self._begin(self.trainer.val_dataloaders, brief=self.trainer.state.fn == "fit")

    def on_test_epoch_start(self) -> None:
        self._begin(self.trainer.test_dataloaders)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("validation")
        self._swap()
        for scheduler in [] if self._updates.by_step else self._schedulers():
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(monitored(self.trainer.callback_metrics, self._updates.monitor)[1])
            else:
                for _ in range(self.trainer.check_val_every_n_epoch or 1):
                    scheduler.step()

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    # --- checkpoints ---------------------------------------------------------------------------------

    def save_checkpoint(self, path: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint. Collective.

        `state` is Lightning's part of it: loops (with the loader's position), callbacks, schedulers.
        """
        assert self._optimizers is not None
        if (problem := first_problem(self.not_finite())) is not None:
            step = f"after step {self.global_step}, so no checkpoint was written"
            fail_together(NotFinite(f"{problem} {step}; {self._advice()}"))
        self._refresh()
        state |= self._optimizers.state_dict()
        state |= {"steps_before": self._steps_before} if self._steps_before else {}
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        if self.loss_scale is not None:
            state["loss_scale"] = self.loss_scale.state_dict()
        sharded_checkpoint.save(path, self.sharded, self.row_optimizer, state)
        self.last_checkpoint = path

    def on_fit_start(self) -> None:
        """Load what a training goes on from; weights, optimizers and their states exist by now."""
        if self._beginning.goes_on_from is None:
            return
        assert self._optimizers is not None
        path, fresh = self._beginning.goes_on_from
        go_on(path, self.sharded, self.row_optimizer, fresh)
        run_state = RunState.load(path)
        if "ema" in run_state.state:
            Ema.put(averaged_weights(self.dmp, self.sharded.plan), run_state.state["ema"])
        if self.ema is not None:
            self.ema.restart()
        self._optimizers.go_on(run_state.state["dense_optimizer"])
        self._steps_before = run_state.state["global_step"] + run_state.state.get("steps_before", 0)
        if self.sharded.optimizer.counts_steps:
            self.dmp.fused_optimizer.set_optimizer_step(self._steps_before)
        if self.row_optimizer is not None:
            self.row_optimizer.set_step(self._steps_before)

    def not_finite(self) -> str | None:
        """Return a description of a loss or a weight of this rank that is NaN or infinite, or None.

        On GPUs, training_step checks the loss only at logged steps; and no loss shows what the last step did.
        """
        if self._loss is not None and not bool(torch.isfinite(self._loss)):
            return f"the loss is {float(self._loss)}"
        return sharded_checkpoint.not_finite(self.dmp.state_dict())

    def load_checkpoint(self, path: Path, training: bool) -> dict[str, Any]:
        """Restore a checkpoint and return Lightning's part of its state. Collective.

        If not `training`, only the weights are restored.
        """
        known = self._beginning.resumed
        run_state = known if known is not None and known.checkpoint == path else RunState.load(path)
        state = dict(run_state.state)
        if not training:
            sharded_checkpoint.load_model(path, self.sharded)
            if "ema" in state:
                Ema.put(averaged_weights(self.dmp, self.sharded.plan), state["ema"])
            return {k: v for k, v in state.items() if k != "callbacks"}  # only a run that resumes has this state
        assert self._optimizers is not None
        self._steps_before = state.get("steps_before", 0)
        steps = self._steps_before + state["global_step"]
        sharded_checkpoint.load_all(path, self.sharded, self.row_optimizer, steps)
        self._optimizers.load_state_dict(state, self._schedulers())
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        skipped = 0
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])
            skipped = self.loss_scale.skipped
        if self.sharded.optimizer.counts_steps:  # for Adam's bias correction
            self.dmp.fused_optimizer.set_optimizer_step(self._steps_before + run_state.batches - skipped)
        self.last_checkpoint = path
        return {k: v for k, v in state.items() if k not in ("dense_optimizer", "lr", "ema", "loss_scale")}
