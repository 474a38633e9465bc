"""Mult-VAE against a NumPy reference of the paper's equations."""

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses import FullSoftmax
from recsys.losses.task import RetrievalTask
from recsys.models.mult_vae import MultVAE

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


def table(module: nn.Module) -> np.ndarray:
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


def test_ten_steps_of_adam_are_those_of_the_papers_code(model: MultVAE) -> None:
    """github.com/dawenliang/vae_cf: rows of 0 and 1 through dense layers; its first layer's bias stays 0 here."""
    task = RetrievalTask(model, FullSoftmax(), Candidates(torch.ones(ITEMS)))
    items, lists = model.items.state_dict().popitem()[1], model.read.state_dict().popitem()[1]
    first, encoder = nn.Linear(ITEMS - 1, HIDDEN, bias=False), nn.Linear(HIDDEN, 2 * LATENT)
    decoder, last = nn.Linear(LATENT, HIDDEN), nn.Linear(HIDDEN, ITEMS - 1)
    first.weight.data = lists[1:].T.clone()
    encoder.load_state_dict(model.encoder[1].state_dict())
    decoder.load_state_dict(model.decoder[0].state_dict())
    last.weight.data, last.bias.data = items[1:, :-1].clone(), items[1:, -1].clone()
    theirs = torch.optim.Adam([p for layer in (first, encoder, decoder, last) for p in layer.parameters()], lr=0.01)
    ours = torch.optim.Adam(task.parameters(), lr=0.01)
    chosen = torch.zeros(len(ROWS), ITEMS - 1)
    for x, row in zip(chosen, ROWS, strict=True):
        x[[i - 1 for i in row]] = 1
    for step in range(1, 11):
        torch.manual_seed(step)
        ours.zero_grad()
        loss, _ = task(batch(ROWS))
        loss.backward()
        ours.step()
        torch.manual_seed(step)
        kept = torch.zeros_like(chosen)
        kept[chosen > 0] = (torch.rand(int(chosen.sum())) < 1 - DROPOUT).float()
        seen = nn.functional.normalize(chosen) * kept / (1 - DROPOUT)
        mean, log_variance = encoder(first(seen).tanh()).split(LATENT, dim=1)
        logits = last(decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()).tanh())
        neg_ll = -(logits.log_softmax(1) * chosen).sum(1).mean()
        kl = (0.5 * (-log_variance + log_variance.exp() + mean**2 - 1)).sum(1).mean()
        elbo = neg_ll + 0.3 * min(step / 4, 1) * kl
        theirs.zero_grad()
        elbo.backward()
        theirs.step()
        assert loss.item() == pytest.approx(elbo.item() * len(ROWS) / chosen.sum().item(), rel=1e-4)
    torch.testing.assert_close(items[1:, :-1], last.weight.data, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(lists[1:], first.weight.data.T, rtol=1e-3, atol=1e-4)
