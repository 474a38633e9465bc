"""The LightningModule: builds and shards the task, steps, measures, and knows what a checkpoint holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from recsys.batch import Batch
from recsys.config.schema_run import ShardingConfig, SparseOptimConfig
from recsys.data.loader import ParquetLoader
from recsys.errors import UserError
from recsys.evaluation.binary import BinaryMetrics
from recsys.evaluation.retrieval import Protocols, RankingMetrics, candidate_shard
from recsys.sharding import checkpoint
from recsys.sharding.init import init_tables
from recsys.sharding.plan import describe, make_plan, shard
from recsys.sharding.row_optimizer import RowOptimizer
from recsys.sharding.tables import TableInfo, pad_tables, tables
from recsys.task import RetrievalTask, Task
from recsys.training.ema import Ema
from recsys.training.run_state import _batches
from recsys.training.timing import Timing

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


class RecsysModule(pl.LightningModule):
    """A Task under DistributedModelParallel.

    make_task: builds the task, its tables on the meta device (weights are made shard by shard)
    batch_size: rows a process and step, for the planner
    gauc: the feature whose values group the rows of GAUC
    accumulate, clip_norm, ema: of the dense parameters (schema.TrainerConfig, OptimConfig)
    by_step: the scheduler counts steps, not validations
    load_factors: shares of rows that are cached, by vocabulary (data.frequency)
    """

    def __init__(
        self,
        make_task: Callable[[], Task | RetrievalTask],
        sharding: ShardingConfig,
        sparse: SparseOptimConfig,
        *,
        batch_size: int,
        local_world_size: int,
        make_optimizer: MakeOptimizer | None = None,
        make_scheduler: MakeScheduler | None = None,
        monitor: str = "validation/auc",
        protocols: Protocols | None = None,
        metrics: BinaryMetrics | None = None,
        gauc: str | None = None,
        log_every_n_steps: int = 50,
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema: float | None = None,
        by_step: bool = False,
        load_factors: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._make_task, self._sharding, self.sparse = make_task, sharding, sparse
        self._batch_size, self._local_world_size = batch_size, local_world_size
        self._load_factors = load_factors
        self._make_optimizer, self._make_scheduler = make_optimizer, make_scheduler
        self._monitor, self._log_every = monitor, log_every_n_steps
        self._accumulate, self._clip_norm, self._by_step = accumulate, clip_norm, by_step
        self._ema_decay = ema
        self.ema: Ema | None = None
        self.timing = Timing(torch.device("cpu"))
        self.stepped = True  # whether the last batch's gradients are in the weights
        self.dmp: DistributedModelParallel | None = None
        self.plan: list[dict[str, Any]] = []
        self.tables: dict[str, TableInfo] = {}
        self.row_optimizer: RowOptimizer | None = None
        self.last_checkpoint: Path | None = None
        self._loss: Tensor | None = None
        self._protocols = protocols
        self._items: Tensor | None = None  # (n, d) of the candidates that this rank has held, while they are ranked
        self._gauc = gauc
        self.metrics: BinaryMetrics | RankingMetrics = metrics or BinaryMetrics()

    def configure_model(self) -> None:
        if self.dmp is None:
            self.setup_model(self.trainer.strategy.root_device)

    def setup_model(self, device: torch.device) -> None:
        """Build, plan and shard the task over the processes of the default group."""
        task = self._make_task()
        pad_tables(task, self._sharding.padding)
        self.tables = tables(task)
        plan, sharders = make_plan(
            task,
            self._sharding,
            self.sparse,
            device=device,
            batch_size=self._batch_size,
            local_world_size=self._local_world_size,
            load_factors=self._load_factors,
        )
        self.plan = describe(plan, self.tables)
        self.timing = Timing(device)
        self.dmp = shard(task, plan, sharders, device)
        if isinstance(task, RetrievalTask):
            assert self._protocols is not None and task.candidates is not None
            task.set_candidates(task.candidates.to(device))
            self.metrics = RankingMetrics(self._protocols, task.candidates.popularity.cpu().numpy())
        seed = torch.initial_seed()
        init_tables(self.dmp, self.tables, seed)
        torch.manual_seed(seed + dist.get_rank())  # from here on (dropout) each rank has its own numbers

    # --- optimizers ----------------------------------------------------------------------------------

    def _split_parameters(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(dense parameters, tables that RowOptimizer updates), by name; fused tables are in neither."""
        assert self.dmp is not None
        kernels = {e["parameter"]: e["kernel"] for e in self.plan}
        dense: dict[str, Tensor] = {}
        rows: dict[str, Tensor] = {}
        for name, p in self.dmp.named_parameters():
            if name not in kernels:
                dense[name] = p
            elif kernels[name] == "dense" and p.dim() == 2:
                rows[name] = p
        return dense or {"none": torch.zeros(0)}, rows  # optimizers refuse to have nothing

    def configure_optimizers(self) -> Any:
        assert self.dmp is not None and self._make_optimizer is not None
        dense, rows = self._split_parameters()
        self._dense = list(dense.values())
        if self._ema_decay is not None:
            if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in self.dmp.modules()):
                raise UserError("optim.ema: batch normalisation's statistics have no average; leave one of them out")
            self.ema = Ema(dense, self._ema_decay)
        if rows and self.sparse.clip is not None:
            name = next(t.name for t in self.tables.values() if t.parameter in rows)
            raise UserError(
                f"optim.sparse.clip={self.sparse.clip}: is of FBGEMM's fused kernels; {len(rows)} tables have none "
                f"here ({name}, ...): choose another optim.sparse.name or sharding, or null"
            )
        parts: list[Any] = [self.dmp.fused_optimizer, KeyedOptimizerWrapper(dense, self._make_optimizer)]
        if rows:
            shares = {rows[t.parameter]: t.dim / t.width for t in self.tables.values() if t.parameter in rows}
            self.row_optimizer = RowOptimizer(list(rows.values()), self.sparse, shares)
            parts.append(KeyedOptimizerWrapper(rows, lambda _: self.row_optimizer))  # type: ignore[arg-type,return-value]
        optimizer = CombinedOptimizer(parts)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # type: ignore[attr-defined]
        if self._make_scheduler is None:
            return optimizer
        return [optimizer], [self._make_scheduler(optimizer)]

    # --- steps ---------------------------------------------------------------------------------------

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch if device.type == "cpu" else batch.to(device, non_blocking=True)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert self.dmp is not None
        optimizer = self.optimizers()
        self.stepped = (batch_idx + 1) % self._accumulate == 0 or self.trainer.is_last_batch
        if batch_idx % self._accumulate == 0:
            # before the forward pass, in which FBGEMM's kernels take the learning rate that this sets
            optimizer.zero_grad()  # type: ignore[union-attr]
        with self.timing.part("forward"):
            loss, _ = self.dmp(batch)
        tell = (batch_idx + 1) % (self._log_every * self._accumulate) == 0
        if (loss.device.type == "cpu" or tell) and not bool(torch.isfinite(loss)):
            raise UserError(self._diverged(batch, float(loss)))
        with self.timing.part("backward"):
            self.manual_backward(loss / self._accumulate)
        if self.stepped:
            with self.timing.part("optimizer"):
                self._step(optimizer, tell)
        self._loss = loss.detach()
        if tell:
            self.log("train/loss", self._loss, rank_zero_only=True)
        return self._loss

    def _step(self, optimizer: Any, tell: bool) -> None:
        if self._clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self._dense, self._clip_norm)
            if tell:
                self.log("train/grad_norm", norm, rank_zero_only=True)
        optimizer.step()
        if self.ema is not None:
            self.ema.update()
        if self._by_step:
            for scheduler in self._schedulers():
                scheduler.step()
            if tell:
                lr = self._groups()["dense"][0]
                self.log("train/lr_factor", lr["lr"] / (lr["initial_lr"] or 1), rank_zero_only=True)

    def _schedulers(self) -> list[Any]:
        schedulers = self.lr_schedulers()
        return schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []

    def _diverged(self, batch: Batch, loss: float) -> str:
        low, high = batch.dense.amin(0).tolist(), batch.dense.amax(0).tolist()
        ranges = ", ".join(f"{a:.3g}..{b:.3g}" for a, b in zip(low, high, strict=True)) or "none"
        good = self.last_checkpoint or "none yet"
        return (
            f"the loss is {loss} at step {self.global_step}; ranges of the dense features in this batch: {ranges}; "
            f"last good checkpoint: {good}; try a lower optim.sparse.lr or optim.dense.lr"
        )

    def _evaluate(self, batch: Batch) -> None:
        assert self.dmp is not None
        _, output = self.dmp(batch)
        if isinstance(self.metrics, BinaryMetrics):
            self.metrics.update(output, batch.labels, batch.weight, batch.first_row)
            return
        assert batch.targets is not None and batch.history is not None and self._items is not None
        scorer, items = self.dmp.module.scorer, self._items
        mine, _ = candidate_shard(self.metrics.candidates)

        def score(queries: Tensor, first: int, stop: int) -> Tensor:
            with torch.autocast(items.device.type, enabled=False):  # in half precision many scores would tie
                return scorer.score_all(queries, items[first - mine.start : stop - mine.start])

        self.metrics.update(output.float(), score, batch.targets, batch.history, batch.first_row, batch.weight)

    def _look_at_items(self) -> None:
        """Collective: the vectors of the candidates that this rank scores, as they are now."""
        if isinstance(self.metrics, RankingMetrics):
            assert self.dmp is not None
            self._items = self.dmp.module.item_vectors(*candidate_shard(self.metrics.candidates)).float()

    def _measure(self, loader: ParquetLoader) -> None:
        """Collective: what the metrics of this loader's rows need."""
        self._look_at_items()
        if isinstance(self.metrics, BinaryMetrics) and (name := self._gauc) is not None:
            self.metrics.groups = lambda start, stop: loader.column(name, start, stop).to_numpy()

    def on_validation_epoch_start(self) -> None:
        self._swap()
        self._measure(self.trainer.val_dataloaders)  # type: ignore[arg-type]

    def on_test_epoch_start(self) -> None:
        self._measure(self.trainer.test_dataloaders)  # type: ignore[arg-type]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch)

    def _swap(self) -> None:
        """In training, the average of the dense weights in their place, or they in its."""
        if self.ema is not None and self.trainer.state.fn == "fit":
            self.ema.swap()

    def on_validation_epoch_end(self) -> None:
        self._tell("validation")
        self._swap()
        for scheduler in [] if self._by_step else self._schedulers():
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(float(self.trainer.callback_metrics[self._monitor]))
            else:
                for _ in range(self.trainer.check_val_every_n_epoch or 1):
                    scheduler.step()

    def on_test_epoch_end(self) -> None:
        self._tell("test")

    def _tell(self, split: str) -> None:
        self._items = None
        for name, value in self.metrics.compute().items():
            self.log(f"{split}/{name}", torch.tensor(value, dtype=torch.float64), rank_zero_only=False)

    # --- checkpoints ---------------------------------------------------------------------------------

    def save_checkpoint(self, path: Path, state: dict[str, Any]) -> None:
        """Collective. `state` is Lightning's: loops (with the loader's position), callbacks, schedulers."""
        assert self.dmp is not None
        if self._loss is not None and not bool(torch.isfinite(self._loss)):  # on GPUs not every step looks
            good = self.last_checkpoint or "none yet"
            raise UserError(f"the loss is {float(self._loss)}: not saved; last good checkpoint: {good}")
        state["dense_optimizer"] = self._dense_wrapper()._optimizer.state_dict()
        state["lr"] = {
            kind: [g["lr"] / g["initial_lr"] if g["initial_lr"] else 1.0 for g in groups][:1]
            for kind, groups in self._groups().items()
        }
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        checkpoint.save(path, self.dmp, self.tables, self.sparse.name, self.row_optimizer, state, self.plan)
        self.last_checkpoint = path

    def load_checkpoint(self, path: Path, training: bool) -> dict[str, Any]:
        """Collective. Weights alone where not training."""
        assert self.dmp is not None
        if not training:
            checkpoint.load_model(path, self.dmp, self.tables)
            state = torch.load(path / "state.pt", weights_only=False, map_location="cpu")
            if "ema" in state:
                dense, _ = self._split_parameters()
                Ema.put(dense, state["ema"])
            return {k: v for k, v in state.items() if k != "callbacks"}  # theirs are of the run that goes on
        state = checkpoint.load_all(path, self.dmp, self.tables, self.sparse.name, self.row_optimizer)
        wrapper = self._dense_wrapper()
        wrapper._optimizer.load_state_dict(state.pop("dense_optimizer"))
        # it has made new groups, which the wrapper, and through it the scheduler, must see
        wrapper.param_groups, wrapper.state = wrapper._optimizer.param_groups, wrapper._optimizer.state
        self._restore_lr(state)
        if self.ema is not None:
            self.ema.load_state_dict(state.pop("ema"))
        if "adam" in self.sparse.name:
            self.dmp.fused_optimizer.set_optimizer_step(_batches(state["loops"]["fit_loop"]))  # FBGEMM counts them
        self.last_checkpoint = path
        return state

    def _optimizer(self) -> CombinedOptimizer:
        optimizer = self.trainer.strategy.optimizers[0]
        assert isinstance(optimizer, CombinedOptimizer)
        return optimizer

    def _dense_wrapper(self) -> KeyedOptimizerWrapper:
        wrapper = self._optimizer().optimizers[1][1]
        assert isinstance(wrapper, KeyedOptimizerWrapper)
        return wrapper

    def _groups(self) -> dict[str, list[Any]]:
        """Parameter groups; how many the tables have depends on the plan."""
        dense = self._dense_wrapper().param_groups
        ids = {id(g) for g in dense}
        return {"dense": list(dense), "sparse": [g for g in self._optimizer().param_groups if id(g) not in ids]}

    def _restore_lr(self, state: dict[str, Any]) -> None:
        """What a scheduler has made of the learning rates, whatever groups the plan has now."""
        for kind, factor in state.pop("lr").items():
            for group in self._groups()[kind] if factor else ():
                group["lr"] = group["initial_lr"] * factor[0]
        groups: list[Any] = list(self._optimizer().param_groups)

        def fit(saved: dict[str, Any], fresh: Any) -> None:
            for key in ("base_lrs", "min_lrs", "max_lrs"):  # one a group, from the config alone
                if key in saved:
                    saved[key] = getattr(fresh, key)
            saved["_last_lr"] = [g["lr"] for g in groups]
            for inner, other in zip(saved.get("_schedulers", ()), getattr(fresh, "_schedulers", ()), strict=False):
                fit(inner, other)

        fresh = self.lr_schedulers()
        for saved, scheduler in zip(
            state.get("lr_schedulers", ()), fresh if isinstance(fresh, list) else [fresh], strict=False
        ):
            fit(saved, scheduler)


def local_device(accelerator: str, local_rank: int) -> torch.device:
    """cpu, or the GPU of this local rank."""
    return torch.device("cpu") if accelerator == "cpu" else torch.device("cuda", local_rank)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
