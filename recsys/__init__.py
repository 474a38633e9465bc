"""Declarative deep recommender systems."""

import os

# Before torch loads OpenMP. Its threads spin at barriers for milliseconds, which starves them where the cores are
# shared: two threads beside two busy processes trained at a third of the speed that they have when they spin for some
# microseconds and then sleep. On idle cores the short spin costs nothing that could be measured.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
