"""A model and its loss, from Batch to (loss, predictions): the module that is sharded and trained."""

from torch import Tensor, nn

from recsys.batch import Batch


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
