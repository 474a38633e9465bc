"""New items of today are put into service between trainings."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from recsys.base.errors import UserError
from recsys.export.artefact.load_artefact import load
from recsys.follow.__main__ import follow
from recsys.follow.model_registry import ModelRegistry
from recsys.online.servable import Query

CONFIG = """
name: log
source: {format: parquet, files: []}
group: {by: user, order: at}
sequences: {max_length: 5, held_out: all}
split: {by: leave_one_out}
sparse: {item: {}}
items: {file: ITEMS, key: item, ids: false, dense: {price: {transform: [standardise]}}, sparse: {kind: {}}}
"""


@pytest.mark.slow
def test_new_items_between_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def write_day(day: int) -> None:
        rows = {"user": rng.integers(0, 60, 900), "item": rng.integers(0, 20, 900), "at": 900 * day + np.arange(900)}
        Path("logs").mkdir(exist_ok=True)
        pl.DataFrame(rows).write_parquet(f"logs/day=2026-01-0{day}.parquet")

    about = pl.DataFrame({"item": range(20), "kind": [f"k{i % 4}" for i in range(20)], "price": rng.random(20)})
    about.write_csv("items.csv")
    Path("conf/data").mkdir(parents=True)
    Path("conf/data/log.yaml").write_text(CONFIG.replace("ITEMS", str(tmp_path / "items.csv")))
    small = ["model=sasrec", "model.dim=8", "model.max_length=5", "trainer.max_epochs=1", "trainer.threads=1"]
    settings = {
        "root": "root",
        "train": ["data=log", *small],
        "partitions": {"folder": "logs", "pattern": "*.parquet"},
        "items": "today.csv",
        "gate": {"change": {"ndcg@10": -1.0}, "min_rows": 10},
    }
    Path("follow.yaml").write_text(yaml.safe_dump(settings))
    write_day(1)
    write_day(2)
    about.write_csv("today.csv")
    registry = ModelRegistry(Path("root/registry"), "model")

    def step() -> list[str]:
        follow(Path("follow.yaml"), None, [], None)
        return registry.versions()

    def best(version: str) -> dict[object, float]:
        history = [{"user": 1, "item": 3, "at": 1}, {"user": 1, "item": 5, "at": 2}]
        [(items, scores)] = load(registry.artefact(version)).recommend([Query(history, k=25, filter_history=False)])
        return dict(zip(items, scores, strict=True))

    [first] = step()
    assert step() == [first]  # no new item, no version
    new = about.head(5).with_columns(item=pl.col("item") + 100)
    pl.concat([about, new]).write_csv("today.csv")
    _, second = step()
    before, after = best(first), best(second)
    assert after == before | {i + 100: before[i] for i in range(5)}
    assert registry.aliases() == {"champion": second, "previous": first}
    write_day(3)
    *_, third, fourth = step()  # a training from the same weights, then the items again
    assert len(registry.versions()) == 4 and registry.aliases()["champion"] == fourth
    assert 100 not in best(third) and {100, 104} <= {*best(fourth)}
    assert step() == registry.versions() and len(registry.versions()) == 4
    Path("today.csv").write_text("item,price\n1,2\n")
    with pytest.raises(UserError, match="kind"):
        step()
    assert registry.aliases()["champion"] == fourth
