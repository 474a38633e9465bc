"""Settings that meet: each relation on each combination of the arrays.

A hundredth of them is tried every day, drawn by the date or by RECSYS_PAIRS_SEED; `-m slow` tries all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from case import Case
from relations import RELATIONS
from settings import SEED, combinations, drawn, name_of


def cases() -> list[tuple[str, dict[str, str]]]:
    """Return each relation with each combination of which it must hold, once."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for chosen in (c for array in ("ranking", "retrieval") for c in combinations(array)):
        for name, relation in RELATIONS.items():
            if (fitted := relation.fitted(chosen)) is not None:
                found.setdefault((name, name_of(fitted)), fitted)
    return [(name, chosen) for (name, _), chosen in found.items()]


CASES = cases()
DRAWN = drawn(len(CASES))
SLOW = {"another_process"}  # ten seconds


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        pytest.param(*case, id=f"{case[0]}-{i}", marks=[] if i in DRAWN and case[0] not in SLOW else pytest.mark.slow)
        for i, case in enumerate(CASES)
    ],
)
def test_relation(name: str, chosen: dict[str, str], tmp_path: Path) -> None:
    print(f"RECSYS_PAIRS_SEED={SEED}: {name} of {name_of(chosen)}")
    RELATIONS[name].check(Case(chosen, tmp_path))
