"""RQ-VAE, an autoencoder with residually quantised latent vectors: Lee et al., Autoregressive Image Generation using
Residual Quantization, 2022, https://arxiv.org/abs/2203.01941; for items: Rajput et al. 2023,
https://arxiv.org/abs/2305.05065.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recsys.data.semantic_ids.residual_codes import Layers, ResidualCodes, fit_residual_kmeans

if TYPE_CHECKING:
    from torch import nn

HIDDEN = (512, 256, 128)  # widths between vectors and latent vectors, as in the paper on items
LATENT = 32
COMMITMENT = 0.25  # weight of the encoder's distance to its centroids
BATCH = 1024
RATE = 1e-3
FIRST_EPOCHS = 5  # share of them, in tenths, that train the autoencoder before its codebooks exist


def fit_rqvae(x: np.ndarray, levels: int, size: int, epochs: int, seed: int) -> ResidualCodes:
    """Train an RQ-VAE on vectors.

    The autoencoder is trained alone at first; then k-means makes the first codebooks of its latent vectors, and all
    are trained together, with a straight-through gradient. At the end, k-means fits the codebooks once more, so that no
    centroid is unused.

    Args:
        x: (n, w) vectors, at least one.
        levels, size, seed: as for `fit_residual_kmeans`.
        epochs: passes over the vectors.
    """
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        widths = [x.shape[1], *HIDDEN, LATENT]
        encoder, decoder = _mlp(widths), _mlp(widths[::-1])
        data = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        weights = [*encoder.parameters(), *decoder.parameters()]
        first = epochs * FIRST_EPOCHS // 10
        optimizer, tables = torch.optim.AdamW(weights, lr=RATE), nn.ParameterList()
        for epoch in range(epochs):
            if epoch == first:
                with torch.no_grad():
                    books = fit_residual_kmeans(encoder(data).numpy(), levels, size, seed)
                tables = nn.ParameterList(torch.from_numpy(t) for t in books.tables)
                optimizer = torch.optim.AdamW([*weights, *tables], lr=RATE, weight_decay=0.0)
            for rows in torch.randperm(len(data)).split(BATCH):
                batch = data[rows]
                latent = encoder(batch)
                quantised, loss = latent, latent.new_zeros(())
                if len(tables):
                    residual, total = latent, torch.zeros_like(latent)
                    for table in tables:
                        with torch.no_grad():
                            codes = torch.cdist(residual, table).argmin(dim=1)
                        loss = loss + nn.functional.mse_loss(table[codes], residual.detach())
                        loss = loss + COMMITMENT * nn.functional.mse_loss(residual, table[codes].detach())
                        total = total + table[codes]
                        residual = residual - table[codes].detach()
                    quantised = latent + (total - latent).detach()
                loss = loss + nn.functional.mse_loss(decoder(quantised), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            books = fit_residual_kmeans(encoder(data).numpy(), levels, size, seed)
    return ResidualCodes(books.tables, _layers(encoder), _layers(decoder))


def _mlp(widths: list[int]) -> "nn.Sequential":
    from torch import nn

    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(a, b)]
    return nn.Sequential(*layers[1:])


def _layers(network: "nn.Sequential") -> Layers:
    from torch import nn

    linear = [m for m in network if isinstance(m, nn.Linear)]
    return tuple((m.weight.detach().numpy().T.copy(), m.bias.detach().numpy().copy()) for m in linear)
