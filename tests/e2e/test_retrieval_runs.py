"""Models that retrieve, through the whole path, on real interactions: floors, protocols, what can go wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.job.check_built import check_job
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
    how = ["trainer.max_epochs=12", "trainer.validate_every=12", "trainer.batch_size=64", "optim.dense.lr=0.003"]
    how += ["optim.sparse.lr=0.003", "protocol.candidates=[full,uniform,popularity]", "loss=sampled_softmax"]
    metrics = run(tmp_path / "sasrec", prepared, "model=sasrec", *data, *how)
    assert metrics["test"]["ndcg@10"] > 2 * popular["test"]["ndcg@10"]
    assert metrics["test"]["ndcg@10_uniform"] > 0.3
    stamp = metrics["protocol"]["ranking"]
    assert stamp["protocols"] == ["full", "uniform", "popularity"]
    assert stamp["negatives"] == {"count": 100, "of": "no history, no target", "seed": 0}
    other = evaluate(str(tmp_path / "sasrec"))["test"]
    assert other["ndcg@10"] == pytest.approx(metrics["test"]["ndcg@10"], abs=1e-6)
    assert evaluate(str(tmp_path / "popular"))["test"] == popular["test"]


SIDE_BY_SIDE = {  # floor -> models
    0.18: ("ease", "slim"),
    0.17: ("item_knn", "gf_cf", "ials"),
    0.14: ("popularity", "mult_vae", "lightgcn model.user=user_id"),
    0.13: ("two_tower", "transition", "ultragcn model.user=user_id"),
    0.12: ("mf model.user=user_id", "neumf model.user=user_id"),
    0.08: ("simplex model.user=user_id optim=adam_fast",),
}


FLOORS = {m: floor for floor, models in SIDE_BY_SIDE.items() for m in models}


@pytest.mark.parametrize("model", [m if m == "ease" else pytest.param(m, marks=pytest.mark.slow) for m in FLOORS])
def test_side_by_side(model: str, real_data: RealData, prepared: Path, tmp_path: Path) -> None:
    """MovieLens 100K by time: the same queries for all models, whatever they read."""
    data = ["data=movielens_100k_retrieval", f"data.root={real_data('ml-100k')}", "trainer.batch_size=16"]
    test = run(tmp_path / "run", prepared, *f"model={model}".split(), *data, "trainer.max_epochs=12")["test"]
    assert test["ndcg@20"] > FLOORS[model]
    assert [test[k] for k in ("rows", "targets", "cold_targets")] == [90, 2886, 93]
    assert 0 < test["recall@20"] < test["hr@20"] <= 1


MISTAKES = """
model=ease trainer.devices=2 | fitted in one process; set trainer.devices=1
model=ease protocol.candidates=[uniform] protocol.lists=[serendipity] | protocol.lists=
model=sasrec protocol.lists=[coverge] | protocol.lists: coverge is not a metric of lists
model=ease protocol.exposure=[year] | this data has no features of items; name the file
model=ease data=movielens_100k_retrieval protocol.exposure=[genre] | no feature of items genre; did you mean genres
model=ease protocol.candidates=[uniform] protocol.exposure=[year] | protocol.exposure=.* needs protocol.candidates=
model=sasrec protocol.candidates=[ful] | protocol.candidates\\[0\\]=ful: .*full
model=sasrec checkpoint.monitor=validation/auc | validation/auc: no such metric
model=sasrec checkpoint.monitor=validation/gini@10 | gini@10: metrics of lists are measured after training only
model=sasrec model.heads=3 | model: dim=64 is not divisible by heads=3
model=sasrec data.items.feature=itm | data.items.feature=itm: there is no such sparse feature
model=sasrec data.sparse.item={encode:hash,buckets:100} | data.items.feature=item: must be a single column with encode=v
model=mf | model: MF needs the feature that identifies the user
model=mf data=movielens_100k_retrieval model.user=usr | model: user=usr: no such single-valued sparse feature
model=two_tower | TwoTower needs features of the user
model=dlrm | the rows have no label, but this model predicts one
model=tiger | this model reads semantic ids of items: set data.semantic_ids
model=tiger data=tiger_beauty loss=full_softmax | set loss=likelihood
model=sasrec data=tiger_beauty loss=likelihood | set loss=likelihood only for model=tiger
"""


@pytest.mark.few(6)
@pytest.mark.parametrize("line", MISTAKES.split("\n")[1:-1])
def test_mistakes(line: str, tmp_path: Path) -> None:
    overrides, message = line.split(" | ")
    with pytest.raises(UserError, match=message):
        check_job(compose("train", ["data=movielens_1m", *overrides.split(), f"data.root={tmp_path}"]))


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
