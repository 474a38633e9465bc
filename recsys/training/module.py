"""The LightningModule: builds and shards the task, trains and measures it, writes and reads checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed import DistributedModelParallel

from recsys.base.console import say_once
from recsys.base.errors import NotFinite, UserError
from recsys.distributed.ranks import fail_together, first_problem
from recsys.evaluation.evaluators import Evaluator, LabelsEvaluator
from recsys.evaluation.metrics_table import monitored
from recsys.interface.batch import Batch
from recsys.losses import LabelLosses
from recsys.losses.task import RetrievalTask, Task
from recsys.models.common.items import QueriesAhead
from recsys.models.common.layers import has_batch_norm
from recsys.models.protocols import says
from recsys.sharding import sharded_checkpoint
from recsys.sharding.sharded_model import Placement, ShardedModel
from recsys.training.compiled import CompiledModel, Eager, compiled_model, recompute_blocks
from recsys.training.ema import Ema, averaged_weights
from recsys.training.module_settings import Beginning, Updates
from recsys.training.pipelines import PIPELINES, PREFETCH, Pipeline, Sequential
from recsys.training.profiling import Timing
from recsys.training.run_state import RunState
from recsys.training.step import Step, step_of


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

    sharded: ShardedModel  # made by setup_model, as `compiled` and `timing` are
    dmp: DistributedModelParallel  # that of `sharded`
    compiled: Eager | CompiledModel
    timing: Timing
    step: Step  # made by configure_optimizers
    _loop: Sequential | Pipeline  # made by on_train_start

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
        self.last_checkpoint: Path | None = None
        self.rows_trained = 0  # by this process

    def configure_model(self) -> None:
        if not hasattr(self, "sharded"):
            self.setup_model(self.trainer.strategy.root_device)

    def setup_model(self, device: torch.device) -> None:
        """Build, plan and shard the task over the processes of the default group."""
        seed, updates = torch.initial_seed(), self._updates
        dtype = self._placement.sharding.table_dtype
        if dtype != "fp32" and device.type == "cpu" and updates.make_optimizer is not None:
            why = "CPUs round to the nearest number, so that small steps of large weights are lost"
            say_once(f"sharding.table_dtype={dtype}: {why}; GPUs round stochastically")
        self.sharded = ShardedModel(
            self._make_task(),
            self._placement,
            device,
            accumulate=updates.accumulate,
            prefetch=updates.pipeline == PREFETCH,
            bfloat16=updates.precision == "bf16-mixed",
        )
        self.dmp, task = self.sharded.dmp, self.sharded.task
        self.timing = Timing(device)
        if isinstance(task, RetrievalTask) and task.candidates is not None:
            task.set_candidates(task.candidates.to(device))
            if (read_pairs := self._beginning.read_pairs) is not None and task.model.reads_interactions:
                task.model.set_interactions(read_pairs(task.model.user).to(device))
            if (read_counts := self._beginning.read_counts) is not None and task.loss.ageing is not None:
                task.set_popularity(read_counts(task.loss.ageing, task.model.items.rows).to(device))
        if updates.recompute and not recompute_blocks(task.model):
            say_once(f"trainer.recompute=true: has no effect on {type(task.model).__name__}, which has no blocks")
        self.compiled = compiled_model(task, updates, device, self._placement.batch_size)
        torch.manual_seed(seed + dist.get_rank())  # from here on, each rank draws its own random numbers

    # --- steps ---------------------------------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        make_step = step_of(self._updates)
        self.step = make_step(self, self.sharded, self._updates, self.compiled, self.timing)
        combined = self.step.optimizers.combined
        if self._updates.make_scheduler is None:
            return combined
        return [combined], [self._updates.make_scheduler(combined)]

    def on_train_start(self) -> None:
        task, kind = self.sharded.task, self._updates.pipeline
        loader: Any = self.trainer.train_dataloader
        if kind in PIPELINES and (problem := Pipeline.problem(task)) is None:
            self._loop = Pipeline(kind, self.dmp, self.step, self.device, loader.upcoming)
            return
        if kind in PIPELINES:
            say_once(f"trainer.pipeline={kind}: {type(task.model).__name__} trains with pipeline=base: {problem}")
        self._loop = Sequential(self.step, self.device)
        model = task.model
        ahead = isinstance(model, QueriesAhead) and says(type(model), "queries_ahead", "make_queries")
        if isinstance(task, RetrievalTask) and ahead:
            loader.make_queries = task.queries_ahead

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch  # the loader has copied it

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if batch.rows == 1 and has_batch_norm(self.dmp):
            why = "a batch has 1 row in each process, and batch normalisation needs 2 or more"
            fail_together(UserError(f"trainer.batch_size: {why}; set model.batch_norm=false or add training rows"))
        self.step.begin(batch_idx, self.trainer.is_last_batch, self._log_every)
        try:
            self._loop.train(batch)
            self.rows_trained += batch.rows
        except NotFinite as e:
            raise NotFinite(f"{e}; {self._advice()}{self.step.hint}") from e
        if self.step.logs:
            self.log("train/loss", self.step.loss, rank_zero_only=True)
            loss_of = getattr(self.sharded.task, "loss", None)
            for name, value in loss_of.logged().items() if isinstance(loss_of, LabelLosses) else ():
                self.log(f"train/{name}", value, rank_zero_only=True)
        return self.step.loss

    def on_train_end(self) -> None:
        self._loop.drain()

    def _advice(self) -> str:
        good = self.last_checkpoint or "none yet"
        return f"last good checkpoint: {good}; try a lower optim.sparse.lr or optim.dense.lr"

    # --- evaluation ----------------------------------------------------------------------------------

    @property
    def _trains(self) -> bool:
        return bool(self.trainer.state.fn == "fit")

    def _begin(self, loader: Any, brief: bool = False) -> None:
        if self._trains:
            self._loop.drain()
        self._refresh()
        self.evaluator.begin(self.sharded.task, loader, brief)

    def _refresh(self) -> None:
        """Let a model that trains compute the buffers that evaluation reads."""
        task = self.sharded.task
        reads = isinstance(task, RetrievalTask) and task.model.reads_interactions
        if reads and self._trains:
            task.model.refresh()

    def _evaluate(self, batch: Batch) -> None:
        with self.compiled.context(batch.rows, self.training):
            _, output = self.dmp(batch)
        self.evaluator.update(self.sharded.task, output, batch)

    def _log_metrics(self, split: str) -> None:
        try:
            metrics = self.evaluator.compute()
        except NotFinite as e:
            after = f"after step {self.global_step}" if self._trains else "with the weights of this checkpoint"
            advice = self._advice() if self._trains else "train again with a lower optim.sparse.lr or optim.dense.lr"
            fail_together(NotFinite(f"{split}: {e} {after}; {advice}"))
        if (why := self.evaluator.undefined(metrics)) is not None:
            say_once(f"{split}: {why}")
        for name, value in metrics.items():
            self.log(f"{split}/{name}", torch.tensor(value, dtype=torch.float64), rank_zero_only=False)

    def _swap(self) -> None:
        """During training, exchange the dense weights and their averages, before and after a validation."""
        if self._trains and self.step.ema is not None:
            self.step.ema.swap()

    def on_validation_epoch_start(self) -> None:
        self._swap()
        self._begin(self.trainer.val_dataloaders, brief=self._trains)

    def on_test_epoch_start(self) -> None:
        self._begin(self.trainer.test_dataloaders)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("validation")
        self._swap()
        for scheduler in [] if self._updates.by_step else self.step.schedulers():
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
        if (problem := first_problem(self.not_finite())) is not None:
            step = f"after step {self.global_step}, so no checkpoint was written"
            fail_together(NotFinite(f"{problem} {step}; {self._advice()}"))
        self._refresh()
        sharded_checkpoint.save(path, self.sharded, self.step.optimizers.rows, state | self.step.state_dict())
        self.last_checkpoint = path

    def on_fit_start(self) -> None:
        """Load what a training starts from; weights, optimizers and their states exist by now."""
        if self._beginning.start_from is not None:
            self.step.start_from(*self._beginning.start_from)

    def not_finite(self) -> str | None:
        """Return a description of a loss or a weight of this rank that is NaN or infinite, or None.

        On GPUs, training_step checks the loss only at logged steps; and no loss shows what the last step did.
        """
        if not bool(torch.isfinite(self.step.loss)):
            return f"the loss is {float(self.step.loss)}"
        return sharded_checkpoint.not_finite(self.dmp.state_dict())

    def load_checkpoint(self, path: Path, training: bool) -> dict[str, Any]:
        """Restore a checkpoint and return Lightning's part of its state. Collective.

        If not `training`, only the weights are restored.
        """
        known = self._beginning.resumed
        run_state = known if known is not None and known.checkpoint == path else RunState.load(path)
        state = dict(run_state.state)
        if training:
            self.step.load(path, run_state)
            self.last_checkpoint = path
            return {k: v for k, v in state.items() if k not in ("dense_optimizer", "lr", "ema", "loss_scale")}
        sharded_checkpoint.load_model(path, self.sharded)
        if "ema" in state:
            Ema.put(averaged_weights(self.dmp, self.sharded.plan), state["ema"])
        return {k: v for k, v in state.items() if k != "callbacks"}  # only a run that resumes has this state
