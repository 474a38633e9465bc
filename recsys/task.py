"""A model and its loss, from Batch to (loss, predictions): the module that is sharded and trained."""

from typing import Any

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.candidates import Candidates
from recsys.losses import Match, Popularity


class Task(nn.Module):
    """Binary cross-entropy over the model's logits.

    DistributedModelParallel wraps this module (not the LightningModule), so that TorchRec's train
    pipeline finds `(loss, output)` and the KeyedJaggedTensor as an attribute of the batch.

    Returns the mean loss over rows, weighted where the batch has weights, and the logits (B, T).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.model(batch.dense, batch.sparse)
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits,
            batch.labels,
            weight=None if batch.weight is None else batch.weight[:, None],
            reduction="mean" if batch.weight is None else "sum",
        )
        if batch.weight is not None:
            loss = loss / batch.weight.sum().clamp(min=1) / batch.labels.shape[1]
        return loss, logits


class RetrievalTask(nn.Module):
    """A model that retrieves, and its loss (recsys.losses).

    The model has `items` (ids -> vectors), `ask` (what a batch asks of it) and `encode` (queries), and may have a
    `match` of its own. The item table is looked up once a step: inputs, chosen items and drawn ones together.

    Returns in training the mean loss and no predictions; else 0 and the queries (B, d).
    """

    def __init__(self, model: Any, loss: Any, candidates: Candidates | None = None) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.dot = Match()
        self.set_candidates(candidates)

    def set_candidates(self, candidates: Candidates | None) -> None:
        """They must be on the model's device."""
        self.candidates = self.model.items.candidates = candidates
        self.popularity = None if candidates is None else Popularity(candidates.popularity[: self.model.items.rows])

    @property
    def match(self) -> Any:
        return getattr(self.model, "match", self.dot)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        asked = self.model.ask(batch)
        if not self.training:
            vectors = self.model.items(asked.inputs)
            return vectors.new_zeros(()), self.model.encode(batch, asked, vectors)
        if not len(asked.targets):
            return self._nothing_to_learn(batch, asked)
        drawn = self.loss.draw(asked.targets, self.popularity)
        ids = torch.cat([asked.inputs, asked.targets, drawn.ids.flatten()])
        inputs, chosen, others = self.model.items(ids).split([len(asked.inputs), len(asked.targets), drawn.ids.numel()])
        queries = self.model.encode(batch, asked, inputs)
        others = others.view(*drawn.ids.shape, -1)
        loss = self.loss(self.match, queries, asked.owners, asked.targets, chosen, drawn, others)
        if hasattr(self.model, "penalty"):
            loss = loss + self.model.penalty()
        return loss, queries.new_zeros(0)

    def _nothing_to_learn(self, batch: Batch, asked: Any) -> tuple[Tensor, Tensor]:
        """0, of which all parameters are part: the other ranks' collectives wait for their gradients."""
        vectors = self.model.items(torch.cat([asked.inputs, asked.inputs.new_zeros(1)]))
        queries = self.model.encode(batch, asked, vectors[:-1])
        match = self.match.all(queries, vectors[-1:]).sum() if queries.shape[1:] == vectors.shape[1:] else vectors.sum()
        return (queries.sum() + match) * 0, queries.new_zeros(0)

    def item_vectors(self, ids: range, most: int, chunk: int = 1 << 16) -> Tensor:
        """Collective: (len(ids), d) of these candidates; another rank may ask for others, none for more than most."""
        assert self.candidates is not None, "this task was built for a plan alone"
        device = self.candidates.popularity.device
        vectors = torch.zeros(0)
        with torch.no_grad():
            for at in range(0, max(most, 1), chunk):  # as many lookups on each rank, its last ones of nothing
                some = ids[at : at + chunk]
                found = self.model.items(torch.arange(some.start, some.stop, device=device))
                if not at:
                    vectors = found.new_empty(len(ids), *found.shape[1:])
                vectors[at : at + chunk] = found
        return vectors
