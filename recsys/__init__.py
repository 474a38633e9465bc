"""Declarative deep recommender systems."""

import os

# Set this before torch loads OpenMP. By default, OpenMP's threads spin at barriers for milliseconds and take the cores
# from each other where cores are shared. With this setting they sleep after a few microseconds; benchmarks/README.md
# has the timings.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
