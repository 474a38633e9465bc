"""Indexes of item vectors: the items with the largest inner products with a query, exactly or approximately."""

from recsys.index.build_index import build
from recsys.index.item_index import ItemIndex
from recsys.index.load_index import load
from recsys.index.protocol import Index

__all__ = ["Index", "ItemIndex", "build", "load"]
