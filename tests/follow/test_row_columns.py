"""Columns of raw rows that predictions are matched with: slices and clusters of the gate, and slices of the checks."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from following import DAYS, fake_artefact, followed, settings_file

from recsys.base.errors import UserError
from recsys.data.features.blocks import LABEL
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.prepared import finish
from recsys.data.samples.drifting import write_days
from recsys.follow import cycle
from recsys.follow.column_reference import Reference
from recsys.follow.follow_settings import FollowConfig, load_settings
from recsys.follow.gate import QueryWindow
from recsys.follow.increment_checks import CheckLine, CheckReport
from recsys.follow.row_columns import FILE, clusters, read_columns, write_columns
from recsys.follow.training_config import training_config
from recsys.follow.trainings import window_of


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days of CSV files with rows that cannot be read, and with a column that is not a feature."""
    folder = tmp_path_factory.mktemp("logs")
    write_days(folder, days=4, rows_per_day=2000)
    for file in folder.glob("day=*/part.parquet"):
        rows = pl.read_parquet(file).with_row_index("n")
        price = pl.when(pl.col("n") % 50 == 10).then(pl.lit("cheap")).otherwise(pl.col("price").cast(pl.String))
        site = pl.when(pl.col("n") % 7 == 0).then(None).otherwise(pl.concat_str(pl.lit("s"), pl.col("n") % 3))
        rows.with_columns(price=price, site=site).drop("n").write_csv(file.with_suffix(".csv"))
        file.unlink()
    return folder


def csv_settings(folder: Path, logs: Path, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    file = settings_file(folder, logs, **more)
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(settings | {"train": [*settings["train"], "data.source.format=csv", BAD_SHARE]}))
    return file


BAD_SHARE = "data.max_bad_rows=0.1"


def good_rows(day: str, logs: Path) -> pl.DataFrame:
    return pl.read_csv(logs / day / "part.csv").filter(pl.col("price") != "cheap")


@pytest.mark.parametrize("more", [[], ["data.group.by=user", "data.group.order=time"]], ids=["rows", "groups"])
def test_rows_that_are_set_aside_do_not_shift_the_match(more: list[str], logs: Path, tmp_path: Path) -> None:
    """The columns are row for row those of the prepared test rows, from which the loader numbers predictions."""
    settings = load_settings(csv_settings(tmp_path, logs))
    files = [f"{d}/part.csv" for d in DAYS[:3]]
    cfg = training_config(settings, tmp_path / "prepared", files[:1], files[1:], more)
    write_columns(cfg, ["site", "device", "time", "site"], tmp_path)
    columns = pl.read_parquet(tmp_path / FILE)
    good = pl.concat([good_rows(d, logs) for d in DAYS[1:3]])
    assert columns.height == good.height < 4000
    if not more:
        assert columns["site"].fill_null("").equals(good["site"].fill_null("")) and columns["time"].equals(
            good["time"].cast(pl.String)
        )
    from recsys.job.run_config import RunConfig

    prepared = finish(plan_build(RunConfig.of(cfg).data))
    test = pl.read_parquet(prepared.files("test"))
    device = prepared.fitted.vocabularies["device"]["value"]
    assert device.gather(test["device"] - 1).to_list() == columns["device"].to_list()
    some = pl.Series([5, 700, columns.height - 1])
    label = test[LABEL][some.to_numpy()]
    assert read_columns(tmp_path, ["site"], some, label)["site"].to_list() == columns["site"][some.to_numpy()].to_list()
    for rows, labels in ((some, 1 - label), (some + 1, None)):
        with pytest.raises(UserError, match="the files have changed since the model predicted them; remove"):
            read_columns(tmp_path, ["site"], rows, labels)


def test_a_row_without_a_value_is_a_cluster_of_its_own() -> None:
    owners = clusters(pl.Series(["b", None, "a", "b", None])).tolist()
    assert owners[0] == owners[3] and len(set(owners)) == 4


def test_slices_and_clusters_of_queries(tmp_path: Path) -> None:
    """A query is a row of the split; targets of one query come one after another."""
    frame = pl.DataFrame({"query": [1, 1, 3, 4], "greater_all": [0, 1, 2, 3], "ties_all": [0] * 4})
    frame.write_parquet(tmp_path / "test_ranks.parquet")
    pl.DataFrame({"site": ["a", "b", "c", None, "e"]}).write_parquet(tmp_path / FILE)
    window = window_of(tmp_path, tmp_path, ["site"], "site")
    assert isinstance(window, QueryWindow) and window.cluster is not None
    assert window.slices["site"].tolist() == ["b", "(missing)", "e"] and len(set(window.cluster)) == 3


def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace training by models that know the labels: later ones know more, but take those of tablets for the inverse."""

    def train(cfg: Any, run_dir: Path, start: Path | None) -> Any:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text("")
        return SimpleNamespace(metrics={"protocol": {"rows": {"train": 100}}})

    def measure(run: Path, cfg: Any, output: Path) -> dict[str, float]:
        output.mkdir(parents=True, exist_ok=True)
        rows = pl.concat([good_rows(str(Path(f).parent), Path(cfg.data.root)) for f in cfg.data.split.test_files])
        label, noise = rows["click"].to_numpy(), np.random.default_rng(0).random(rows.height)
        later = run.name > "000001"
        knows = np.where(later & (rows["device"] == "tablet").to_numpy(), 1 - label, label)
        probability = (0.3 + 0.3 * later) * knows + (0.7 - 0.3 * later) * noise
        columns = {"row": range(rows.height), "probability": probability, "label": label.astype(np.uint8)}
        pl.DataFrame(columns).write_parquet(output / "test_predictions.parquet")
        return {"auc": 0.8}

    def export(settings: FollowConfig, run: Path, output: Path, until: str | None, base: Path | None) -> str:
        fake_artefact(output, int(run.name))
        return ""

    for name, fake in {"train_on": train, "measure": measure, "export": export}.items():
        monkeypatch.setattr(cycle, name, fake)


def test_a_challenger_that_is_worse_on_one_slice_is_rejected(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_models(monkeypatch)
    monkeypatch.setattr(cycle, "check_partition", lambda *_: CheckReport((CheckLine("pass", "volume", "ok"),)))
    gate = {"change": {"auc": -0.02}, "min_rows": 500, "min_slice_rows": 100}
    sliced = gate | {"slices": {"device": {"auc": -0.02}}, "cluster": "user"}
    outcomes = {}
    for name, settings in {"whole": gate, "sliced": sliced}.items():
        follower = followed(csv_settings(tmp_path / name, logs, first=1, gate=settings), cycles=2)
        outcomes[name] = [(c.outcome, c.why) for c in follower.state.cycles]
    assert [o for o, _ in outcomes["whole"]] == ["promoted", "promoted"]
    assert [o for o, _ in outcomes["sliced"]] == ["promoted", "rejected"]
    why = outcomes["sliced"][1][1]
    assert why.startswith("device=tablet: AUC was") and why.endswith("worse than the limit beyond chance")
    checks = json.loads((tmp_path / "sliced" / "root" / "cycles" / "000002" / "gate.json").read_text())["checks"]
    assert {c["name"] for c in checks} == {"rows", "auc", *(f"auc device={d}" for d in ("phone", "desktop", "tablet"))}


@pytest.mark.slow
def test_a_model_that_is_worse_on_desktops_is_rejected(tmp_path: Path) -> None:
    """With real trainings: clicks follow the price, on the training day of the challenger inversely so on desktops.

    The champion has learnt from a day whose clicks follow the age, as a fifth of the clicks always do.
    """
    logs = tmp_path / "logs"
    write_days(logs, days=3, rows_per_day=4000)
    for day, of_age, inverse in zip(DAYS[:3], (1.0, 0.2, 0.2), (False, True, False), strict=True):
        file = logs / day / "part.parquet"
        rows, rng = pl.read_parquet(file), np.random.default_rng(0)
        price = pl.col("price") > pl.col("price").median()
        price = price ^ (pl.lit(inverse) & (pl.col("device") == "desktop"))
        drawn = pl.Series(rng.random(rows.height) < of_age)
        click = pl.when(drawn).then(pl.col("age") > pl.col("age").median()).otherwise(price)
        rows.with_columns(click=click.cast(pl.Int8)).write_parquet(file)
    gate = {"change": {"auc": 0}, "min_rows": 500, "slices": {"device": {"auc": -0.02}}}
    more = {"first": 1, "increment": {"overrides": ["trainer.max_epochs=40", "optim.dense.lr=0.01"]}, "gate": gate}
    follower = followed(settings_file(tmp_path, logs, **more))
    cycle_1, cycle_2 = follower.state.cycles
    assert cycle_1.outcome == "promoted" and cycle_2.outcome == "rejected"
    assert cycle_2.metrics["challenger"]["auc"] > cycle_2.metrics["champion"]["auc"]
    assert cycle_2.why.startswith("device=desktop: AUC was")


def test_checks_of_slices(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference has figures of each value; a day on which one value's labels are missing fails because of it."""
    fake_models(monkeypatch)
    own = tmp_path / "own"
    for day in DAYS[:3]:
        (own / day).mkdir(parents=True)
        rows = pl.read_csv(logs / day / "part.csv")
        if day == DAYS[2]:
            lost = (pl.col("device") == "desktop") & (pl.int_range(pl.len()) % 3 > 0)
            rows = rows.with_columns(click=pl.when(lost).then(0).otherwise("click"))
        rows.write_csv(own / day / "part.csv")
    check = {"slices": ["device"], "slice_rows": 200, "calibration": {"warn": None}}
    follower = followed(csv_settings(tmp_path / "f", own, first=1, check=check))
    reference = Reference.load(follower.root / "references" / "000001" / "figures.json")
    assert set(reference.figures) == {"", "device=phone", "device=desktop", "device=tablet"}
    bad = follower.state.partitions[DAYS[2]]
    assert bad.status == "bad" and "device=desktop: the mean of the label is" in bad.why


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"gate": {"slices": {"devise": {"auc": -0.1}}}}, r"gate.slices.devise: .*part.csv has no column devise; did "),
        ({"check": {"slices": ["sites"]}}, r"check.slices=sites: .*part.csv has no column sites; did you mean site\?"),
        ({"gate": {"cluster": "click"}}, r"gate.cluster=click: click is the label or a prediction; name another"),
    ],
)
def test_a_column_that_does_not_exist(more: dict[str, Any], message: str, logs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        followed(csv_settings(tmp_path, logs, **more))
    assert not (tmp_path / "root" / "runs").exists()


def test_a_partition_without_the_column_is_set_aside(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_models(monkeypatch)
    own = tmp_path / "own"
    for day in DAYS[:3]:
        (own / day).mkdir(parents=True)
        rows = pl.read_csv(logs / day / "part.csv")
        (rows.drop("site") if day == DAYS[2] else rows).write_csv(own / day / "part.csv")
    gate = {"min_rows": 500, "slices": {"site": {"auc": -0.1}}}
    file = csv_settings(tmp_path / "f", own, first=1, gate=gate)
    for _ in range(2):
        state = followed(file).state
        assert [c.outcome for c in state.cycles] == ["promoted"]
        assert state.partitions[DAYS[2]].status == "bad" and "has no column site" in state.partitions[DAYS[2]].why
