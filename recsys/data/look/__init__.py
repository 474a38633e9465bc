"""A look at the data before training: gathered in one pass over typed rows, shown as one HTML page."""

from recsys.data.look.found import Found
from recsys.data.look.gather import Look
from recsys.data.look.page import page

__all__ = ["Found", "Look", "page"]
