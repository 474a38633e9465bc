"""The bias of positions: its formulas, and a sample whose relevance is known."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recsys
from recsys.base.errors import UserError
from recsys.data.samples.positions import write_sample
from recsys.interface.features import FeatureSpec, PositionBias, SparseFeature
from recsys.losses.position import BESIDE, MAX_VALUES, SCALE, PositionTower
from recsys.training.evaluate_run import evaluate

DEVICES = (SparseFeature("device", 3, "device"),)
ROWS = ["data=sample_positions", "model=dcnv2", "trainer.threads=1", "data.prepared=prepared"]


def tower(bias: str, *names: str) -> PositionTower:
    spec = FeatureSpec(dense=(), sparse=DEVICES, position=PositionBias(1, names, bias))  # type: ignore[arg-type]
    made = PositionTower(spec)
    torch.nn.init.normal_(made.terms, std=0.1)
    torch.nn.init.normal_(made.vectors, std=0.1)
    return made


def of(*devices: int) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["device"], torch.tensor(devices), lengths=torch.ones(len(devices), dtype=torch.int32))


@pytest.mark.parametrize("names", [(), ("device",)])
def test_logits_at_positions(names: tuple[str, ...]) -> None:
    z, position, devices = torch.tensor([[-3.0], [0.5], [2.0], [90.0]]), torch.tensor([4, 2, 9, 3]), (0, 1, 2, 1)
    added, looked = tower("additive", *names), tower("examination", *names)
    looked.load_state_dict(added.state_dict())
    own, vectors = added.terms.detach().numpy()[:, 0], added.vectors.detach().numpy()[:, 0]
    at = position - 1 + BESIDE
    d = SCALE * (own[at] - own[BESIDE])
    if names:
        values = added.values["device"].detach().numpy()[[*devices]]
        d = d + SCALE * ((vectors[at] - vectors[BESIDE]) * values).sum(1)
    np.testing.assert_allclose(added(z, position, of(*devices)).detach()[:, 0], z[:, 0] + d, rtol=1e-4)
    sigmoid = lambda x: 1 / (1 + np.exp(-np.asarray(x, np.float64)))  # noqa: E731
    click = np.minimum(2 * sigmoid(d) * sigmoid(z[:, 0]), 1 - 1e-6)
    logits = looked(z, position, of(*devices))
    np.testing.assert_allclose(logits.detach()[:, 0], np.log(click / (1 - click)), rtol=2e-3)
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in looked.parameters() if p.grad is not None)


@pytest.mark.parametrize("bias", ["additive", "examination"])
def test_predictions_are_for_the_first_position(bias: str) -> None:
    z = torch.tensor([[-2.0], [1.0], [0.0]])
    made = tower(bias, "device")
    torch.testing.assert_close(made(z, torch.tensor([1, 1, 1]), of(0, 1, 2)), z)
    assert not torch.isclose(made(z, torch.tensor([0, 2, 3]), of(0, 1, 2)), z).any()
    assert made.places(torch.tensor([0, 2**31 - 1])).tolist() == [BESIDE - 1, 2 * BESIDE]


def test_values_of_a_feature_are_few() -> None:
    many = (SparseFeature("user", MAX_VALUES + 1, "user"),)
    with pytest.raises(ValueError, match="user has more than"):
        PositionTower(FeatureSpec(dense=(), sparse=many, position=PositionBias(1, ("user",))))


def truth(folder: Path) -> pl.DataFrame:
    sample = next(p for p in folder.glob("prepared/sample-positions-*") if p.is_dir())
    names = ("impressions", "truth")
    return pl.concat([pl.read_parquet(sample / f"{name}.parquet") for name in names], how="horizontal")


def test_a_run_leaves_positions_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = recsys.train([*ROWS, "data.sample.rows=20000", "trainer.batch_size=256", "run_dir=run"])
    [effects] = run.metrics["positions"].values()
    measured = evaluate("run")
    assert measured["positions"] == {"test": effects}
    assert effects["positions"][0]["examination"] == 1 and effects["positions"][-1]["examination"] < 0.6
    rates = truth(tmp_path).tail(2000).group_by("position").agg(pl.col("click").mean()).sort("position")["click"]
    assert [p["rate"] for p in effects["positions"]] == pytest.approx(rates.to_list())
    assert 0.15 < effects["explains"] < 0.3
    assert effects["at_positions"]["ne"] < 0.85 < 1.2 < measured["test"]["ne"]
    rows = truth(tmp_path).tail(50).drop("click", "relevance", "examination")
    assert run.predict(rows).equals(run.predict(rows.drop("position")))


@pytest.mark.slow
def test_relevance_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bias, predictions are the relevance, and lists are sorted by it; without, they are clicks of a log."""
    monkeypatch.chdir(tmp_path)
    found = {}
    for bias in ("examination", "additive", None):
        keys = ["data.position.column=null"] if bias is None else [f"data.position.bias={bias}"]
        run = recsys.train([*ROWS, *keys, "trainer.max_epochs=2", f"run_dir={bias}"])
        test = truth(tmp_path).tail(50_000)
        scored = test.with_columns(score=run.predict(test))
        relevance, score = pl.col("relevance"), pl.col("score")
        place = lambda x: (x.rank("ordinal", descending=True).over("list") + 1).log(2)  # noqa: E731
        gains = scored.with_columns(own=relevance / place(score), best=relevance / place(relevance)).group_by("list")
        ndcg = gains.agg(pl.col("own").sum() / pl.col("best").sum())["own"].mean()
        found[bias] = ndcg, float(scored["score"].sum() / scored["relevance"].sum())
    print("NDCG and calibration against the relevance:", found)
    assert found["examination"][0] > 0.995 and found["additive"][0] > 0.995 > 0.99 > found[None][0]
    assert found["examination"][1] == pytest.approx(1, abs=0.06)
    assert abs(found["additive"][1] - 1) < 0.3 and found[None][1] < 0.6


def test_new_data_asks_about_positions(tmp_path: Path) -> None:
    write_sample(tmp_path, rows=20_000, seed=0)
    rows = pl.read_parquet(tmp_path / "impressions.parquet")
    found = recsys.new(rows, label="click")
    assert "\nposition: {column: position}" in found.yaml and [q.key for q in found.questions] == ["position"]
    assert "\nposition:" not in recsys.new(rows.with_columns(position=pl.col("kind")), label="click").yaml


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (["data.position.column=click"], "is the column of data.label"),
        (["data.position.column=list"], "is the column of data.group.by"),
        (["+data.derive.p2=position*2", "+data.sparse.p2={}"], "p2 is made of it"),
        (["data.position.first=11"], "the positions 1 to 10"),
        (["data.position.column="], "data.position.column"),
        (["data.where='position = 3'"], "all training rows have 3"),
    ],
)
def test_mistakes(keys: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=why):
        recsys.train([*ROWS, "data.sample.rows=2000", "run_dir=run", *keys])


@pytest.mark.slow
def test_a_middle_position_has_terms_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that goes on keeps the position that predictions are for."""
    monkeypatch.chdir(tmp_path)
    keys = [*ROWS, "data.sample.rows=20000", "trainer.batch_size=256", "data.position.first=5"]
    run = recsys.train([*keys, "run_dir=run"])
    found = {p["position"]: p["examination"] for p in run.metrics["positions"]["test"]["positions"]}
    assert found[5] == 1 and found[1] > 1.2 > 1 > found[10]
    more = recsys.train(["start_from=run", "run_dir=more", "data.sample.seed=1"])
    assert {p["position"]: p["examination"] for p in more.metrics["positions"]["test"]["positions"]}[5] == 1
    with pytest.raises(UserError, match=r"data\.position differs"):
        recsys.train(["start_from=run", "run_dir=other", "data.position.bias=additive"])
