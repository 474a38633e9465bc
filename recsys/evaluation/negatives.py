"""Sample negatives for each query by a hash, so that every process and machine samples the same ones."""

import numpy as np
import torch

from recsys.interface.batch import JaggedIds

DRAWS = 2**22  # maximum number of draws held in memory


def sample_negatives(rows: np.ndarray, excluded: JaggedIds, cumulative: np.ndarray, count: int, seed: int) -> JaggedIds:
    """Sample, for each of (R,) rows, `count` different candidates outside its list in `excluded`.

    Args:
        rows: (R,) row numbers; each sample depends on its row number.
        excluded: R lists of candidates that are not sampled.
        cumulative: (N,) integers, cumulative weights of the candidates. The first, for id 0, is 0. np.arange(N) gives
            all candidates the same weight. A candidate of weight 0 is never sampled.
        count: number of candidates per row; a row with fewer remaining candidates gets all of them.
        seed: seed of the hash.

    Returns:
        R lists in the order of sampling. Draw i of a row is a hash of (seed, row, i), and the first `count` draws that
        are neither excluded nor repeated are taken. Rows that are still short after many draws take the rest by random
        keys of all candidates (Efraimidis & Spirakis 2006), which gives the same distribution.
    """
    n = len(cumulative)
    rounds = [draws for draws in (2 * count + 16, 8 * count, 32 * count) if draws < n]
    step = max(1, DRAWS // max(rounds, default=n))
    parts = [JaggedIds(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))]
    for start in range(0, len(rows), step):
        banned = keys_of(excluded.slice(start, start + step), n)
        parts.append(_sample(rows[start : start + step], banned, cumulative, count, seed, rounds))
    return JaggedIds(torch.cat([part.values for part in parts]), torch.cat([part.lengths for part in parts]))


def _sample(
    rows: np.ndarray, banned: np.ndarray, cumulative: np.ndarray, count: int, seed: int, rounds: list[int]
) -> JaggedIds:
    """Sample in rounds, each with more draws than the last one, for the rows that still lack candidates."""
    n, short = len(cumulative), np.arange(len(rows))
    segment_ids, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for draws in rounds:
        ids, taken = _draw(rows, short, banned, cumulative, count, draws, seed)
        enough = taken.sum(1) == count
        if draws < rounds[-1]:
            taken &= enough[:, None]
        segment_ids.append(short[np.nonzero(taken)[0]])
        values.append(ids[taken])
        short = short[~enough]
    drawn = np.concatenate(segment_ids) * n + np.concatenate(values)
    banned = ascending(np.append(banned, drawn[np.isin(drawn // n, short)]))
    missing = count - np.bincount(drawn // n, minlength=len(rows))
    step = max(1, DRAWS // n)
    for start in range(0, len(short), step):
        row_indices = short[start : start + step]
        owner, ids = _draw_rest(rows, row_indices, banned, cumulative, missing[row_indices], seed)
        segment_ids.append(owner)
        values.append(ids)
    owner = np.concatenate(segment_ids)
    order = np.argsort(owner, kind="stable")
    lengths = np.bincount(owner, minlength=len(rows))
    return JaggedIds(torch.from_numpy(np.concatenate(values)[order]), torch.from_numpy(lengths))


def _draw(
    rows: np.ndarray,
    row_indices: np.ndarray,
    banned: np.ndarray,
    cumulative: np.ndarray,
    count: int,
    draws: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates (len(row_indices), draws) and a mask of the candidates that are taken.

    These are the first `count` that are neither repeated nor banned.
    """
    n = len(cumulative)
    point = (_uniform(seed, rows[row_indices], np.arange(draws)) * cumulative[-1]).astype(np.int64)
    ids = np.searchsorted(cumulative, point, side="right")
    by_id, draw = np.divmod(np.sort(ids * draws + np.arange(draws), axis=1), draws)
    new = np.ones(ids.shape, bool)
    new[:, 1:] = by_id[:, 1:] != by_id[:, :-1]
    new &= ~within(row_indices[:, None] * n + by_id, banned)
    taken = np.empty_like(new)
    np.put_along_axis(taken, draw, new, axis=1)
    return ids, taken & (np.cumsum(taken, axis=1) <= count)


def _draw_rest(
    rows: np.ndarray,
    row_indices: np.ndarray,
    banned: np.ndarray,
    cumulative: np.ndarray,
    missing: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and candidates: each row's missing candidates.

    They have the smallest values of exponential variable / weight.
    """
    n = len(cumulative)
    weight = np.diff(cumulative, prepend=0)
    possible = np.broadcast_to(weight > 0, (len(row_indices), n)).copy()
    owner = np.searchsorted(row_indices, banned // n)
    mine = (owner < len(row_indices)) & (row_indices[np.minimum(owner, len(row_indices) - 1)] == banned // n)
    possible[owner[mine], banned[mine] % n] = False
    uniform = _uniform(seed, rows[row_indices], 2**32 + np.arange(n))
    key = np.where(possible, -np.log1p(-uniform) / np.maximum(weight, 1), np.inf)
    width = min(n, int(missing.max()))
    least = np.argpartition(key, width - 1, axis=1)[:, :width]
    key = np.take_along_axis(key, least, axis=1)
    order = np.argsort(key, axis=1)
    least, key = np.take_along_axis(least, order, axis=1), np.take_along_axis(key, order, axis=1)
    taken = (key < np.inf) & (np.arange(width) < missing[:, None])
    return row_indices[np.nonzero(taken)[0]], least[taken]


def _uniform(seed: int, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return (R, D) numbers in [0, 1), each a hash of (seed, row, draw) (SplitMix64; Steele, Lea & Flood 2014)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = mix(np.array([seed % 2**64], np.uint64) + golden)
    start = mix(start + rows.astype(np.uint64) * golden)
    return (mix(start[:, None] + (draws.astype(np.uint64) + np.uint64(1)) * golden) >> np.uint64(11)) * 2.0**-53


def mix(x: np.ndarray) -> np.ndarray:
    """Return SplitMix64's finaliser of uint64 numbers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys_of(lists: JaggedIds, n: int) -> np.ndarray:
    """Return list * n + id for all ids 1 ... n - 1, unique and ascending."""
    owner, value = lists.segment_ids.cpu().numpy(), lists.values.cpu().numpy()
    return ascending((owner * n + value)[(value > 0) & (value < n)])


def ascending(keys: np.ndarray) -> np.ndarray:
    """Return the sorted unique values. np.unique hashes integers since NumPy 2.3, which is 30 times slower."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def within(keys: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return a mask of the keys that occur in the sorted array `ascending`. It is fast if `keys` is sorted too."""
    if not len(ascending):
        return np.zeros(keys.shape, bool)
    return ascending[np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)] == keys
