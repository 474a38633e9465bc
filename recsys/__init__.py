"""Declarative deep recommender systems."""

import os

# Before torch loads OpenMP: threads that spin at barriers starve each other where the cores are shared
# (a third of the throughput on two cores with two busy neighbours, against no loss on idle ones).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
