"""A model and its loss, from Batch to (loss, predictions): the module that is sharded and trained."""

from typing import Any

import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.interface.batch import Batch
from recsys.interface.candidates import Candidates
from recsys.interface.labels import BinaryLabel, Label
from recsys.losses import LabelLosses, LossInputs, Popularity, label_loss
from recsys.losses.position import PositionTower
from recsys.losses.sampling import Negatives
from recsys.models.common.items import Items, QueryBatch, Scorer
from recsys.models.common.lists import at_most
from recsys.models.protocols import AuxiliaryLoss


class Task(nn.Module):
    """A ranking model and its loss.

    DistributedModelParallel wraps this module (not the LightningModule), so that TorchRec's train
    pipeline finds `(loss, output)` and the KeyedJaggedTensor as an attribute of the batch.

    Args:
        model: a RankingModel.
        loss: a RankingLoss, or Tasks; by default that of the labels' kinds.
        labels: the labels; one binary label by default.
        position: the bias of the rows' positions, in the loss alone.

    forward returns the mean loss over rows, weighted if the batch has weights, and the logits (B, L).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module | None = None,
        labels: tuple[Label, ...] = (BinaryLabel("label"),),
        position: PositionTower | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = label_loss(labels, loss)
        self.position = position
        self._auxiliary = [m for m in model.modules() if isinstance(m, AuxiliaryLoss)]
        self._within_groups = bool(getattr(self.loss, "within_groups", False))
        if isinstance(self.loss, LabelLosses) and self.loss.balance == "gradnorm":
            self.loss.set_last_layer(model)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss, (), and the logits, (B, L), of a batch of B rows."""
        logits = self.model(batch.dense, batch.sparse)
        group = (batch.group,) if self._within_groups else ()
        loss = self.loss(self.at_positions(logits, batch), batch.labels, batch.weight, *group)
        for module in self._auxiliary if self.training else ():
            loss = loss + module.auxiliary_loss()
        return loss, logits

    def at_positions(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the logits of the labels at the rows' positions, (B, L); `logits` if rows have none."""
        if self.position is None or batch.position is None:
            return logits
        clicks: Tensor = self.position(logits, batch.position, batch.sparse)
        return clicks


class RetrievalTask(nn.Module):
    """A retrieval model and its loss.

    The item table is looked up once per step: inputs, chosen items and negatives together.

    Args:
        model: a RetrievalModel.
        loss: a RetrievalLoss.
        candidates: the candidates of the data, on the model's device; None if the task is built only to plan its
            sharding.

    In training, forward returns the mean loss and no predictions; otherwise 0 and the queries (B, d).
    """

    def __init__(self, model: Any, loss: Any, candidates: Candidates | None = None) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self._outside_history = bool(getattr(loss, "outside_history", False))
        self._scores_all = type(model.scorer) is Scorer and type(model.items) is Items  # no vector depends on others
        if model.weighs_pairs and not getattr(loss, "takes_weights", False):
            name = f"{type(model).__name__} weighs its pairs, which {type(loss).__name__} does not support"
            raise UserError(f"loss: {name}; use loss=bce")
        self.rows_of_graphs: int | None = None  # rows of the training batches whose queries are filled up
        self.set_candidates(candidates)

    def set_candidates(self, candidates: Candidates | None) -> None:
        """Set the candidates that can be retrieved; they must be on the model's device.

        Raises UserError if the model cannot tell them apart.
        """
        try:
            self.candidates = self.model.items.candidates = candidates
        except ValueError as e:
            raise UserError(f"model: {e}") from e
        self.popularity = None if candidates is None else Popularity(candidates.popularity[: self.model.items.rows])

    def set_popularity(self, counts: Tensor) -> None:
        """Set what negatives are drawn by instead of the counts of all choices: (N,) of the item table's rows."""
        self.popularity = Popularity(counts)

    @property
    def scorer(self) -> Any:
        """The model's scorer."""
        return self.model.scorer

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss, (), and no queries, (0,); outside training, 0 and the queries of B rows, (B, d)."""
        query_batch = self.model.make_queries(batch) if batch.queries is None else batch.queries
        if self.training and batch.queries is None:
            query_batch = self._filled_up(query_batch, batch.rows)
        if not self.training:
            vectors = self.model.items(query_batch.inputs)
            return vectors.new_zeros(()), self.model.encode(batch, query_batch, vectors)
        given = query_batch.without_filling()
        targets = given.targets
        if not len(targets):
            # a loss of 0 in which all parameters take part: the other ranks' collectives wait for their gradients
            vectors = self.model.items(torch.cat([given.inputs, given.inputs.new_zeros(1)]))
            queries = self.model.encode(batch, given, vectors[:-1])
            same = queries.shape[1:] == vectors.shape[1:]
            scores = self.scorer.score_all(queries, vectors[-1:]).sum() if same else vectors.sum()
            return (queries.sum() + scores) * 0, queries.new_zeros(0)
        history = (given,) if self._outside_history else ()
        negatives = self.loss.sample(targets, self.popularity, *history)
        compared = negatives.looked_up(self.popularity) if self._scores_all else negatives.ids
        sizes = [len(given.inputs), len(targets), compared.numel()]
        ids = torch.cat([given.inputs, targets, compared.flatten()])
        inputs, of_targets, of_negatives = self.model.items(ids).split(sizes)
        of_negatives = of_negatives.view(*compared.shape, *of_negatives.shape[1:])
        if query_batch.filled is not None:
            room = len(query_batch.targets) - len(targets)
            inputs = _with_zeros(inputs, len(query_batch.inputs) - len(given.inputs))
            of_targets = _with_zeros(of_targets, room)
            if len((more := negatives.filled_up(len(targets), room)).ids) > len(negatives.ids):
                of_negatives = of_negatives if compared is not negatives.ids else _with_zeros(of_negatives, room)
                negatives = more
        loss = self.compare(batch, query_batch, inputs, of_targets, negatives, of_negatives)
        return loss, loss.new_zeros(0)

    def compare(
        self,
        batch: Batch,
        query_batch: QueryBatch,
        inputs: Tensor,
        of_targets: Tensor,
        negatives: Negatives,
        of_negatives: Tensor,
    ) -> Tensor:
        """Return the loss of the vectors that were looked up: what is compiled, and launched as a CUDA graph.

        Args:
            inputs: (P, d).
            of_targets: (T, d).
            of_negatives: see LossInputs.looked_up.
        """
        filled = query_batch.filled
        with at_most(None if filled is None else filled.longest):
            queries = self.model.encode(batch, query_batch, inputs)
        loss: Tensor = self.loss(
            LossInputs(
                self.scorer,
                queries,
                query_batch.query_of_target,
                query_batch.targets,
                of_targets,
                negatives,
                of_negatives,
                query_batch.in_order,
                self.model.weights(batch, query_batch, negatives.ids) if self.model.weighs_pairs else None,
                None if filled is None else query_batch.targets > 0,
            )
        )
        penalty = self.model.penalty()
        return loss if penalty is None else loss + penalty

    def compile(self, **options: Any) -> None:
        """Compile `compare` as torch.compile does."""
        self.compare = torch.compile(self.compare, **options)  # type: ignore[method-assign]

    def queries_ahead(self, batch: Batch, draw: int) -> QueryBatch:
        """Make the queries of a training batch in a thread that loads batches, of a QueriesAhead model.

        draw: what is random follows from this number
        """
        return self._filled_up(self.model.queries_ahead(batch, draw), batch.rows)

    def _filled_up(self, query_batch: QueryBatch, rows: int) -> QueryBatch:
        return query_batch.filled_up() if rows == self.rows_of_graphs and query_batch.in_order else query_batch

    def item_vectors(self, ids: range, max_ids: int, chunk: int = 1 << 16) -> Tensor:
        """Return the vectors (len(ids), d) of these candidates. Collective: each rank passes its own range of ids.

        max_ids: the largest number of ids on any rank
        """
        assert self.candidates is not None, "this task was built without candidates, for planning only"
        device = self.candidates.popularity.device
        vectors = torch.zeros(0)
        with torch.no_grad():
            # all ranks make the same number of lookups (collectives); a rank with fewer ids ends with empty ones
            for at in range(0, max(max_ids, 1), chunk):
                part = ids[at : at + chunk]
                looked_up = self.model.items(torch.arange(part.start, part.stop, device=device))
                if not at:
                    vectors = looked_up.new_empty(len(ids), *looked_up.shape[1:])
                vectors[at : at + chunk] = looked_up
        return vectors


def _with_zeros(x: Tensor, number: int) -> Tensor:
    """Return vectors (M, ...) and this number of zeros behind them."""
    return nn.functional.pad(x, [0] * (2 * x.dim() - 1) + [number])
