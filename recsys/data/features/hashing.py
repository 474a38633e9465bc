"""The hash of `encode: hash`. It is the same on every machine, and in every version of this package and of polars.

    h    = CRC-32 of the value's UTF-8 bytes (ISO 3309: zlib.crc32)
    h    = fmix64(h), the finalizer of MurmurHash3
    id   = 1 + h mod buckets

CRC-32 alone is linear: it fills buckets unevenly if values are similar and `buckets` is a power of two.
Any change here makes every checkpoint with hashed features useless.
"""

import hashlib
import zlib

import numpy as np
import polars as pl


def bucket_ids(values: pl.Series, buckets: int) -> pl.Series:
    """Return Int32 ids from 1 to `buckets` for a String column without nulls."""
    texts = values.cast(pl.Binary).to_list()
    crcs = np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts))
    return pl.Series(values.name, buckets_of_crcs(crcs, np.uint64(buckets)))


def buckets_of_crcs(crcs: np.ndarray, buckets: np.ndarray | np.uint64) -> np.ndarray:
    """Return int32 ids from 1 to `buckets` for CRC-32s: uint64, of any shape to which `buckets` broadcasts."""
    return (mix(crcs) % buckets).astype(np.int32) + np.int32(1)


def group_numbers(values: pl.Series) -> np.ndarray:
    """Hash a String column without nulls to (rows,) int64, so that different values hardly ever get the same number."""
    texts, place = np.unique(values.to_numpy(), return_inverse=True)
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.int64)[place]


def shares(values: pl.Series, seed: int) -> np.ndarray:
    """Hash a String column without nulls to (rows,) uniform numbers in [0, 1); equal values get equal numbers."""
    texts = values.cast(pl.Binary).to_list()
    return shares_of_places(np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts)), seed)


def shares_of_places(places: np.ndarray, seed: int) -> np.ndarray:
    """Hash (rows,) whole numbers to (rows,) uniform numbers in [0, 1); equal ones get equal numbers."""
    return mix(places.astype(np.uint64) + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)) / 2.0**64


def mix(h: np.ndarray) -> np.ndarray:
    """Mix the bits of `h` (Appleby's MurmurHash3): every bit of the result depends on every bit of `h`."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    return h ^ (h >> np.uint64(33))
