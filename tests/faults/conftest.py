"""Fixtures of small_run.py, for all tests of this folder."""

from small_run import home, raw, trained

__all__ = ["home", "raw", "trained"]
