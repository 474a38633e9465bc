"""Mult-VAE against a NumPy reference of the paper's equations."""

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch
from recsys.candidates import Candidates
from recsys.features import FeatureSpec, SparseFeature
from recsys.losses import FullSoftmax
from recsys.models.mult_vae import MultVAE
from recsys.task import RetrievalTask

ITEMS, HIDDEN, LATENT, DROPOUT = 9, 5, 3, 0.4
LISTS = FeatureSpec(
    dense=(), sparse=(SparseFeature("item", ITEMS, "item", multi_valued=True, sequence=True),), item="item"
)
ROWS = [[1, 4, 7, 8], [2], [3, 5, 6]]


def batch(rows: list[list[int]]) -> Batch:
    values = torch.tensor([i for row in rows for i in row], dtype=torch.int32)
    sparse = KeyedJaggedTensor(["item"], values, lengths=torch.tensor([len(row) for row in rows], dtype=torch.int32))
    return Batch(torch.zeros(len(rows), 0), sparse, torch.zeros(len(rows), 0))


@pytest.fixture
def model() -> MultVAE:
    torch.manual_seed(0)
    return MultVAE(LISTS, hidden=HIDDEN, latent=LATENT, dropout=DROPOUT, beta=0.3, anneal=4, init_std=1.0)


def encoded(model: MultVAE, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the logarithm of the variance: sums (B, hidden) of the rows of the sets."""
    linear = model.encoder[1]
    both = np.tanh(sums) @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
    return both[:, :LATENT], both[:, LATENT:]


def decoded(model: MultVAE, z: np.ndarray) -> np.ndarray:
    linear = model.decoder[0]
    hidden = np.tanh(z @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy())
    return np.concatenate([hidden, np.ones((len(z), 1))], axis=1)


def table(module: torch.nn.Module) -> np.ndarray:
    [weight] = module.parameters()
    return weight.detach().double().numpy()


def test_training(model: MultVAE) -> None:
    task = RetrievalTask(model, FullSoftmax(), Candidates(torch.ones(ITEMS)))
    torch.manual_seed(1)
    loss, _ = task(batch(ROWS))
    torch.manual_seed(1)
    items = [i for row in ROWS for i in row]
    drawn, noise = torch.rand(len(items)).numpy(), torch.randn(len(ROWS), LATENT).double().numpy()
    read, row_of = table(model.read), np.repeat(np.arange(len(ROWS)), [len(row) for row in ROWS])
    sums = np.zeros((len(ROWS), HIDDEN))
    for item, row, kept in zip(items, row_of, drawn < 1 - DROPOUT, strict=True):
        sums[row] += kept * read[item] / (1 - DROPOUT)  # as the paper's code: dropout scales what it keeps
    assert 0 < (drawn < 1 - DROPOUT).sum() < len(items)
    sums /= np.sqrt([[len(row)] for row in ROWS])
    mean, log_variance = encoded(model, sums)
    scores = decoded(model, mean + noise * np.exp(log_variance / 2)) @ table(model.items)[1:].T
    log_shares = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    kl = 0.5 * (mean**2 + np.exp(log_variance) - log_variance - 1).sum()
    wanted = -sum(log_shares[row, item - 1] for item, row in zip(items, row_of, strict=True)) + 0.3 / 4 * kl
    assert loss.item() == pytest.approx(wanted / len(items), rel=1e-5)


def test_evaluation_reads_all_items_but_the_one_to_predict(model: MultVAE) -> None:
    model.eval()
    rows = batch(ROWS)
    found = model.encode(rows, model.make_queries(rows), torch.zeros(0, HIDDEN + 1)).detach()
    read = table(model.read)
    sums = np.stack([read[row[:-1]].sum(0) / np.sqrt(max(len(row) - 1, 1)) for row in ROWS])
    np.testing.assert_allclose(found, decoded(model, encoded(model, sums)[0]), rtol=1e-5, atol=1e-6)
