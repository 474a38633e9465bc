"""Row-wise tables whose most frequent rows are all on one process."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forks import ok, run_forked
from small_csv import write_mine

from recsys.config.compose import compose
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.plan import plan
from recsys.sharding.skew import largest_share

ROWS = 401  # with that of unknown values


@pytest.mark.parametrize("blocks", [1, 3, 4, 7])
def test_the_largest_share_is_that_of_a_loop(blocks: int) -> None:
    counts = np.random.default_rng(0).zipf(1.5, ROWS - 1).clip(max=1000)
    for order in (np.sort(counts)[::-1], counts):
        height = -(-ROWS // blocks)
        lookups = np.zeros(blocks)
        for row, count in enumerate(order, start=1):
            lookups[row // height] += count
        cut = {first: min(height, ROWS - first) for first in range(0, ROWS, height)}
        assert largest_share(cut, order) == pytest.approx(lookups.max() / counts.sum())


def planned(folder: Path, *overrides: str) -> str | None:
    given = ["data=criteo", "cluster=here", f"features={folder}", "trainer.batch_size=4096", "model=fm", *overrides]
    return plan(compose("plan", given)).skewed


def test_a_plan_names_the_worst_table_and_the_others(tmp_path: Path) -> None:
    counts = {"hot": 1e6 / np.arange(1, ROWS), "warm": 1e6 / np.arange(1, ROWS) ** 0.7, "even": np.full(ROWS - 1, 5)}
    names = [*counts, "hashed"]  # of which nothing is counted
    FeatureSpec((), tuple(SparseFeature(name, ROWS, name) for name in names)).save(tmp_path / "features.json")
    (tmp_path / "vocabularies").mkdir()
    for table, values in counts.items():
        pl.DataFrame({"count": values.astype(np.uint32)}).write_parquet(tmp_path / f"vocabularies/{table}.parquet")
    shares = {t: float(c[:100].astype(np.uint32).sum() / c.astype(np.uint32).sum()) for t, c in counts.items()}
    assert shares["hot"] > shares["warm"] > 0.5 > shares["even"]
    line = planned(tmp_path, "sharding=rowwise", "cluster.devices=4")
    assert line is not None and f"hot: one of 4 processes answers {shares['hot']:.0%}" in line
    assert f"warm ({shares['warm']:.0%})" in line and "even" not in line and "hashed" not in line
    assert planned(tmp_path / "features.json", "sharding=rowwise", "cluster.devices=4") == line
    assert planned(tmp_path, "sharding=columnwise", "cluster.devices=4", "model.dim=16") is None


@pytest.mark.slow
def test_a_run_says_it(tmp_path: Path) -> None:
    write_mine(tmp_path)
    rows = (f"{i % 2},1.5,u{i % 60 if i % 4 == 0 else 0}\n" for i in range(2000))
    (tmp_path / "raw" / "a.csv").write_text("clicked,price,user\n" + "".join(rows))
    args = ["data=mine", "data.root=raw", "trainer.devices=4", "trainer.threads=1", "trainer.batch_size=128"]
    said = ok(run_forked("recsys.train", *args, "sharding=rowwise", "run_dir=runs/a", cwd=tmp_path)).stderr
    assert "user: one of 4 processes answers" in said
    said = ok(run_forked("recsys.train", *args, "sharding=columnwise", "run_dir=runs/b", cwd=tmp_path)).stderr
    assert "processes answers" not in said
