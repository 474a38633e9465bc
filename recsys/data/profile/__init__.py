"""Profile the data before training: one pass over parsed rows, shown as one HTML page."""

from recsys.data.profile.data_profile import DataProfile
from recsys.data.profile.profile_page import page
from recsys.data.profile.profiler import profile_rows

__all__ = ["DataProfile", "page", "profile_rows"]
