"""Indexes of item vectors: the items with the largest inner products with a query, exactly or approximately."""

from recsys.serving.index.build import build
from recsys.serving.index.item_index import ItemIndex
from recsys.serving.index.load import load
from recsys.serving.index.protocol import Index

__all__ = ["Index", "ItemIndex", "build", "load"]
