"""A look at the data before training: gathered in one pass over typed rows, shown as one HTML page."""

from recsys.data.profile.data_profile import Found
from recsys.data.profile.profile_page import page
from recsys.data.profile.profiler import Profiler

__all__ = ["Found", "Profiler", "page"]
