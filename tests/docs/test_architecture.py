"""docs/explanation/architecture.md names every package, in the order of the contract that holds them apart."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
COMMANDS = {"__main__", "train", "evaluate", "predict", "plan", "preprocess", "checkpoint", "dashboard", "serve"}
COMMANDS |= {"registry", "feature_store", "pipeline"}


def test_packages_stand_in_the_order_of_the_layers() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [set(re.split(r"[ |]+", layer)) - COMMANDS for layer in contract["layers"]]
    text = PAGE[PAGE.index("## Packages") :]
    places = [[text.index(f"**{name}") for name in layer] for layer in layers if layer]
    assert [max(above) < min(below) for above, below in pairwise(places)] == [True] * (len(places) - 1)
    assert all((ROOT / "recsys" / name).exists() for layer in layers for name in layer if name != "api")
