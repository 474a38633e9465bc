"""Declarative deep recommender systems."""

import os

# Before torch loads OpenMP. By default its threads spin at barriers for milliseconds, which starves them where the
# cores are shared; they now sleep after some microseconds (benchmarks/README.md has what that brings).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
