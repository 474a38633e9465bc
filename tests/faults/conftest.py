"""Fixtures of small_run.py, for all tests of this folder."""

from small_run import raw, trained

__all__ = ["raw", "trained"]
