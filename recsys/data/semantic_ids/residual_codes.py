"""Codes of vectors by residual quantisation: each level codes what the levels before it leave of a vector.

Level l has a codebook, a table of centroids. The code of a level is the centroid nearest to the residual, and the next
residual is what remains after it is subtracted.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

CHUNK = 1 << 13  # vectors that are compared with all centroids at once
ROUNDS = 50  # of Lloyd's algorithm at most
MAX_FITTED = 1 << 18  # vectors that codebooks are fitted to at most

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
HIDDEN = (512, 256, 128)  # widths between vectors and latent vectors, as in the paper on items
LATENT = 32
COMMITMENT = 0.25  # weight of the encoder's distance to its centroids
BATCH = 1024
RATE = 1e-3
FIRST_EPOCHS = 5  # share of them, in tenths, that train the autoencoder before its codebooks exist


@dataclass(frozen=True)
class ResidualCodes:
    """Codebooks, for RQ-VAE within the space of its encoder.

    tables: the centroids of each level, (k, d)
    encoder, decoder: weights (d_in, d_out) and bias of each linear layer, with ReLU between them; none for k-means
    """

    tables: tuple[np.ndarray, ...]
    encoder: Layers = ()
    decoder: Layers = ()

    def codes(self, x: np.ndarray) -> np.ndarray:
        """Return the codes of vectors: (n, w) -> (n, levels) int64."""
        parts = [np.zeros((0, len(self.tables)), np.int64)]
        for at in range(0, len(x), CHUNK):
            residual = _apply(self.encoder, x[at : at + CHUNK]).astype(np.float64)
            columns = []
            for table in self.tables:
                columns.append(nearest(residual, table))
                residual = residual - table[columns[-1]]
            parts.append(np.stack(columns, axis=1))
        return np.concatenate(parts)

    def reconstruct(self, codes: np.ndarray) -> np.ndarray:
        """Return the vectors that codes (n, l) of the first l levels stand for, (n, w)."""
        return _apply(self.decoder, sum(t[codes[:, i]] for i, t in enumerate(self.tables[: codes.shape[1]])))

    def save(self, file: Path) -> None:
        layers = {"encoder": self.encoder, "decoder": self.decoder}
        arrays = {f"table_{i}": t for i, t in enumerate(self.tables)}
        for name, own in layers.items():
            arrays |= {f"{name}_{i}_{k}": a for i, layer in enumerate(own) for k, a in enumerate(layer)}
        np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, file: Path) -> "ResidualCodes":
        with np.load(file) as stored:
            arrays = dict(stored)

        def layers(name: str) -> Layers:
            count = sum(key.startswith(f"{name}_") for key in arrays) // 2
            return tuple((arrays[f"{name}_{i}_0"], arrays[f"{name}_{i}_1"]) for i in range(count))

        tables = (arrays[f"table_{i}"] for i in range(sum(key.startswith("table_") for key in arrays)))
        return cls(tuple(tables), layers("encoder"), layers("decoder"))


def _apply(layers: Layers, x: np.ndarray) -> np.ndarray:
    for i, (weight, bias) in enumerate(layers):
        x = (np.maximum(x, 0) if i else x) @ weight + bias
    return x


def nearest(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the index of the centroid (k, d) nearest to each vector, the first of equally near ones: (n, d) -> (n,).

    Computed in float64, so that rounding does not decide between chunks of different sizes.
    """
    centroids = table.astype(np.float64)
    distances: np.ndarray = (centroids**2).sum(axis=1) - 2 * (x.astype(np.float64) @ centroids.T)
    return distances.argmin(axis=1)


def fit_residual_kmeans(x: np.ndarray, levels: int, size: int, seed: int) -> ResidualCodes:
    """Fit a codebook of at most `size` centroids for each level with k-means on the residuals.

    With fewer distinct vectors than `size`, a codebook has one centroid for each of them.

    Args:
        x: (n, w) vectors, at least one.
        seed: seed of the first centroids, and of the vectors that are drawn from more than MAX_FITTED.
    """
    rng = np.random.default_rng(seed)
    if len(x) > MAX_FITTED:
        x = x[np.sort(rng.choice(len(x), MAX_FITTED, replace=False))]
    residual, tables = x.astype(np.float32), []
    for _ in range(levels):
        tables.append(kmeans(residual, size, rng))
        residual = residual - tables[-1][_assign(residual, tables[-1])]
    return ResidualCodes(tuple(tables))


def kmeans(x: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return centroids (k, d), k <= size: Lloyd's algorithm from k-means++ (Arthur & Vassilvitskii 2007).

    A centroid that loses all its vectors moves to the vector that is farthest from its own centroid.
    """
    chosen = [int(rng.integers(len(x)))]
    distances = ((x - x[chosen[0]]) ** 2).sum(axis=1, dtype=np.float64)
    while len(chosen) < size and (total := distances.sum()) > 0:
        chosen.append(int(np.searchsorted(distances.cumsum(), rng.random() * total, side="right").clip(max=len(x) - 1)))
        distances = np.minimum(distances, ((x - x[chosen[-1]]) ** 2).sum(axis=1, dtype=np.float64))
    table = x[chosen].astype(np.float32)
    before = np.full(len(x), -1)
    for _ in range(ROUNDS):
        codes = _assign(x, table)
        if (codes == before).all():
            break
        before = codes
        sums = np.zeros(table.shape, np.float64)
        np.add.at(sums, codes, x)
        counts = np.bincount(codes, minlength=len(table))
        table = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], table).astype(np.float32)
        if (empty := np.flatnonzero(counts == 0)).size:
            far = np.argsort(-((x - table[codes]) ** 2).sum(axis=1), kind="stable")[: len(empty)]
            table[empty] = x[far]
    return table


def _assign(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.concatenate([nearest(x[at : at + CHUNK], table) for at in range(0, len(x), CHUNK)])


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
