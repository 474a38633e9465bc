"""Indexes of item vectors: the items with the largest inner products with a query, exactly or approximately."""

from recsys.serving.index.build import build
from recsys.serving.index.item_index import ItemIndex

__all__ = ["ItemIndex", "build"]
