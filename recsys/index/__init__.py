"""Indexes of item vectors: the items with the largest inner products with a query, exactly or approximately."""

from pathlib import Path

import numpy as np

from recsys.index import milvus
from recsys.index.build_index import build
from recsys.index.item_index import ItemIndex
from recsys.index.protocol import Index, read_manifest

__all__ = ["Index", "ItemIndex", "build", "load"]


def load(folder: Path, *, vectors: np.ndarray | None = None, threads: int = 1, digests: bool = True) -> Index:
    """Read an index from a folder that `Index.save` wrote.

    Args:
        vectors: as for `ItemIndex.load`; an index in a server has its own.
        threads: number of threads of a search in this process.
        digests: as for `ItemIndex.load`.

    Raises:
        UserError: the folder is not an index of this version, or its server does not have the vectors.
        DamagedFile: a file is missing or is not as it was written.
    """
    if read_manifest(folder)["kind"] == milvus.KIND:
        return milvus.MilvusIndex.load(folder, digests=digests)
    return ItemIndex.load(folder, vectors=vectors, threads=threads, digests=digests)
