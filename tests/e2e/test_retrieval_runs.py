"""Models that retrieve, through the whole path, on real interactions: floors, protocols, what can go wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train

RealData = Callable[[str], Path]
USERS = 700  # of MovieLens 1M


@pytest.fixture(scope="module")
def slice_of_ml_1m(real_data: RealData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ml-1m")
    rows = (real_data("ml-1m") / "ml-1m.txt").read_text().splitlines(keepends=True)
    (folder / "ml-1m.txt").write_text("".join(r for r in rows if int(r.split()[0]) <= USERS))
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


def run(path: Path, prepared: Path, *overrides: str) -> dict[str, Any]:
    common = [f"data.prepared={prepared}", f"run_dir={path}", "trainer.threads=1"]
    return train(compose("train", [*overrides, *common])).metrics


@pytest.mark.slow
def test_sasrec_beats_popularity_twice(slice_of_ml_1m: Path, prepared: Path, tmp_path: Path) -> None:
    """On full ranking; each protocol is stamped, and a run is evaluated anew under another one."""
    data = ["data=movielens_1m", f"data.root={slice_of_ml_1m}", "data.sequences.max_length=50"]
    popular = run(tmp_path / "popular", prepared, "model=popularity", *data)
    metrics = run(
        tmp_path / "sasrec", prepared, "model=sasrec", "loss=sampled_softmax", *data,
        "trainer.max_epochs=12", "trainer.validate_every=12", "trainer.batch_size=64",
        "optim.dense.lr=0.003", "optim.sparse.lr=0.003", "protocol.candidates=[full,uniform,popularity]",
    )  # fmt: skip
    assert metrics["test"]["ndcg@10"] > 2 * popular["test"]["ndcg@10"]
    assert metrics["test"]["ndcg@10_uniform"] > 0.3
    stamp = metrics["protocol"]["ranking"]
    assert stamp["protocols"] == ["full", "uniform", "popularity"]
    assert stamp["negatives"] == {"count": 100, "of": "no history, no target", "seed": 0}
    other = evaluate(str(tmp_path / "sasrec"))["test"]
    assert other["ndcg@10"] == pytest.approx(metrics["test"]["ndcg@10"], abs=1e-6)
    assert evaluate(str(tmp_path / "popular"))["test"] == popular["test"]


SIDE_BY_SIDE = {
    "popularity": 0.14, "item_knn": 0.17, "ease": 0.18, "two_tower": 0.13, "mf model.user=user_id": 0.12,
    "neumf model.user=user_id": 0.12, "mult_vae": 0.14, "gf_cf": 0.17, "ials model.l2=0.01": 0.17, "slim": 0.18, "transition": 0.13, "simplex model.user=user_id optim=adam_fast": 0.08,
    "ultragcn model.user=user_id": 0.13, "lightgcn model.user=user_id": 0.14,
}  # fmt: skip


SLOW = [m for m in SIDE_BY_SIDE if m not in ("popularity", "item_knn", "ease", "gf_cf")]


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [pytest.param(m, marks=pytest.mark.slow) if m in SLOW else m for m in SIDE_BY_SIDE])
def test_side_by_side(model: str, real_data: RealData, prepared: Path, tmp_path: Path) -> None:
    """MovieLens 100K by time: the same queries for all models, whatever they read."""
    data = ["data=movielens_100k_retrieval", f"data.root={real_data('ml-100k')}", "trainer.batch_size=16"]
    test = run(tmp_path / "run", prepared, *f"model={model}".split(), *data, "trainer.max_epochs=12")["test"]
    assert test["ndcg@20"] > SIDE_BY_SIDE[model]
    assert {k: test[k] for k in ("rows", "targets", "cold_targets")} == {
        "rows": 90,
        "targets": 2886,
        "cold_targets": 93,
    }
    assert 0 < test["recall@20"] < test["hr@20"] <= 1


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=sasrec"], "data=criteo: this model retrieves items; set data.items.feature"),
        (["model=ease", "data=movielens_1m", "loss=bce"], "loss=recsys.losses.BCE: this model is fitted without a loss"),
        (["model=ease", "data=movielens_1m", "trainer.devices=2"], "fitted in one process; set trainer.devices=1"),
        (["model=sasrec", "data=movielens_1m", "~loss"], "loss: must be set for this model"),
        (["model=sasrec", "data=movielens_1m", "loss.negatives=popular"], r"^loss.negatives='popular': must be uniform, popularity or in_batch; did you mean popularity\?$"),
        (["model=ease", "data=movielens_1m", "protocol.candidates=[uniform]", "protocol.lists=[serendipity]"], "protocol.lists="),
        (["model=sasrec", "data=movielens_1m", "protocol.candidates=[ful]"], r"protocol.candidates\[0\]=ful: must be full, uniform or popularity; did you mean full"),
        (["model=sasrec", "data=movielens_1m", "protocol.k=[0]"], r"protocol.k\[0\]=0: must be at least 1"),
        (["model=sasrec", "data=movielens_1m", "checkpoint.monitor=validation/auc"], "validation/auc: no such metric"),
        (["model=sasrec", "data=movielens_1m", "protocol.lists=[coverge]"], "protocol.lists: coverge is not a metric of lists"),
        (["model=sasrec", "data=movielens_1m", "checkpoint.monitor=validation/gini@10"], "gini@10: metrics of lists are measured after training only"),
        (["model=sasrec", "data=movielens_1m", "model.heads=3"], "model: dim=64 is not divisible by heads=3"),
        (["model=mf", "data=movielens_1m"], "model: MF needs the feature that identifies the user: add one to data.sparse"),
        (["model=mf", "data=movielens_100k_retrieval", "model.user=usr"], "model: user=usr: no such single-valued sparse feature"),
        (["model=two_tower", "data=movielens_1m"], "TwoTower needs features of the user"),
        (["model=dlrm", "data=movielens_1m"], "the rows have no label, but this model predicts one"),
        (["model=sasrec", "data=movielens_1m", "trainer.validate_every=0"], "trainer.validate_every=0"),
        (["model=sasrec", "data=movielens_1m", "data.items.feature=itm"], "data.items.feature=itm: there is no such sparse feature"),
        (["model=sasrec", "data=movielens_1m", "data.sequences.held_out=none"], "must be next or all"),
    ],
)  # fmt: skip
def test_mistakes(overrides: list[str], message: str, tmp_path: Path) -> None:
    from recsys.job.check_built import check

    with pytest.raises(UserError, match=message) as told:
        check(compose("train", [*overrides, f"data.root={tmp_path}"]))
    assert len(str(told.value).splitlines()) == 1


COLD = """
name: cold
source: {files: [log.csv]}
label: {column: null}
group: {by: user, order: time}
split: {by: time, column: time, validation: 0.12, test: 0.12}
items: {feature: item, file: items.txt, key: item, sparse: {kind: {}}}
sparse:
  user: {}
  item: {}
  history: {column: kind_of_item, last: 3}
"""


@pytest.mark.slow
def test_what_is_cold_is_ranked_by_its_features(tmp_path: Path) -> None:
    """Rows that are interactions; held-out ones are of items that training lacks. Two towers, which know an item's kind,
    rank those of the kind that a user likes above the others; a factorisation of ids cannot.
    """
    raw = tmp_path / "raw"
    raw.mkdir()
    log = ["user,item,time,kind_of_item"]
    for t in range(6):
        log += [f"u{u},{'ab'[u % 2]}{(7 * u + t) % 12},{t},{'ab'[u % 2]}" for u in range(150)]
    log += [f"u{u},{'ab'[u % 2]}_new{u % 4},{9 + u % 2},{'ab'[u % 2]}" for u in range(150)]
    log += [f"u{u},{'ab'[u % 2]}_new{(u + 1) % 4},{20},{'ab'[u % 2]}" for u in range(150)]
    items = sorted({line.split(",")[1] for line in log[1:]})
    (raw / "log.csv").write_text("\n".join(log) + "\n")
    (raw / "items.txt").write_text("\n".join(["item,kind", *(f"{i},{i[0]}" for i in items)]) + "\n")
    found = {}
    for model in ("two_tower", "mf"):
        cfg = compose("train", ["data=movielens_100k_retrieval", f"model={model}"])
        cfg.data = OmegaConf.create(COLD)
        cfg.data.root, cfg.data.prepared, cfg.run_dir = str(raw), str(tmp_path / "prepared"), str(tmp_path / model)
        cfg.trainer.max_epochs, cfg.trainer.threads = 30, 1
        if model == "mf":
            cfg.model.user = "user"
        found[model] = train(cfg).metrics["test"]
    for test in found.values():
        assert (test["rows"], test["candidates"], test["cold_targets"]) == (150, 32, 150)
    assert found["two_tower"]["hr@5"] > 0.5
    assert found["mf"]["hr@5"] < 0.3
