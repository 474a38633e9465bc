"""A look at the data: its numbers against plain NumPy, its page against what data may hold."""

from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_rows import learn

from recsys.data.features import LABEL, ResolvedData
from recsys.data.prepare.prepared import parsed_rows, prepare
from recsys.data.profile import DataProfile, page, profile_rows, profiler
from recsys.data.profile.data_profile import drift, psi, wilson
from recsys.data.profile.distributions import from_axis, histogram
from recsys.schema.data_schema import DataConfig, DenseConfig, LabelConfig, SparseConfig, SplitConfig

NOWHERE = Path("/nowhere")


def config(**more: Any) -> DataConfig:
    return ResolvedData(name="t", root="/raw", **more)


def look_at(data: DataConfig, frame: pl.DataFrame, which: np.ndarray, pieces: int = 1) -> DataProfile:
    """As if `frame` came in so many pieces, fitted on its training rows."""
    ends = np.linspace(0, frame.height, pieces + 1).astype(int)
    rows = ((frame[a:b], which[a:b]) for a, b in pairwise(ends))
    return profile_rows(data, rows, learn(data, frame.filter(which == 0)))


def write(found: DataProfile, **info: Any) -> str:
    told: dict[str, Any] = {"name": "t", "root": "/raw", "rows": {}, "bad_rows": 0, "split": "order"}
    return page(found, told | info, NOWHERE)


class Plain(HTMLParser):
    """The tags and the text of a page, whose tags must close in the order in which they open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.text += data


def test_psi_closed_form() -> None:
    p, q = np.array([50, 30, 20]), np.array([20, 30, 50])
    assert psi(p, q) == pytest.approx(2 * 0.3 * np.log(0.5 / 0.2))
    assert psi(p, 7 * p) == 0 and psi(p, q) == pytest.approx(psi(q, p))
    assert psi(np.array([1, 1]), np.array([1, 0])) == pytest.approx(0.5 * np.log(2) + 0.4999 * np.log(5000))
    assert drift(p, np.zeros(3, np.int64)) is None


def test_drift_that_chance_explains_is_none() -> None:
    """95 % of draws without drift are below what is said, and what is far above it is told."""
    rng = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    draws = [drift(rng.multinomial(3000, shares), rng.multinomial(200, shares)) for _ in range(2000)]
    assert np.mean([d.psi <= d.chance for d in draws if d]) == pytest.approx(0.95, abs=0.02)
    few = drift(np.array([5, 5]), np.array([4, 1]))
    assert few is not None and few.psi > 0.25 and few.reading == "stable"
    many = [drift(np.array([5000, 5000]), np.array([n, 10_000 - n])) for n in (5400, 6100, 8000)]
    assert [d.reading for d in many if d] == ["stable", "stable", "large"]
    some = drift(np.array([5000, 5000]), np.array([6800, 3200]))
    assert some is not None and some.reading == "some"


def test_wilson() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Newcombe 1998
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 10)[0] == 0


@pytest.mark.parametrize("pieces", [1, 7])
def test_values(pieces: int) -> None:
    """Target rates, unknown shares and coverage against plain polars."""
    rng = np.random.default_rng(1)
    n = 5000
    values = pl.Series([f"v{int(x)}" if x < 800 else None for x in rng.zipf(1.3, n).clip(0, 1000)], dtype=pl.String)
    frame = pl.DataFrame({"s": values, LABEL: pl.Series(rng.random(n) < 0.3).cast(pl.Float32)})
    which = np.repeat([0, 1, 2], [3000, 1200, 800]).astype(np.uint8)
    found = look_at(config(sparse={"s": SparseConfig(min_count=4)}), frame, which, pieces)
    [f], [t] = found.features, found.tables
    train = frame.filter(which == 0).with_columns(pl.col("s").fill_null(""))
    counts = train.group_by("s").agg(pl.len(), pl.col(LABEL).sum()).sort(["len", "s"], descending=[True, False])
    assert f.cells["train"].to_list()[:20] == counts["len"].to_list()[:20]
    assert f.cells["positives"].to_list()[:20] == counts[LABEL].to_list()[:20]
    assert f.cells["train"].sum() == 3000 and f.cells["positives"].sum() == train[LABEL].sum() == found.positives[0]
    assert f.distinct == counts.height and f.missing[0] == pytest.approx((train["s"] == "").mean())
    known = counts.filter(pl.col("len") >= 4)["s"]
    for i, split in ((1, "validation"), (2, "test")):
        own = frame.filter(which == i)["s"].fill_null("")
        assert f.oov is not None and f.oov[i - 1] == pytest.approx(1 - own.is_in(known.implode()).mean())
        cells = f.cells[split].to_numpy()
        top = counts["s"][:20].to_list()
        assert cells.tolist() == [*((own == v).sum() for v in top), (~own.is_in(top)).sum()]
        p, q = f.cells["train"].to_numpy() / 3000, cells / len(own)
        p, q = np.maximum(p, 1e-4), np.maximum(q, 1e-4)
        assert f.drift[i - 1].psi == pytest.approx(np.sum((p - q) * np.log(p / q)))  # type: ignore[union-attr]
    assert t.thresholds is not None and t.rows == len(known) + 1
    for row in t.thresholds.iter_rows(named=True):
        kept = counts.filter(pl.col("len") >= row["min_count"])["len"]
        assert (row["rows"], row["covered"]) == (len(kept) + 1, pytest.approx(kept.sum() / 3000))
    assert 4 in t.thresholds["min_count"].to_list()


def test_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x = rng.lognormal(1, 2, 4000)
    x[rng.random(4000) < 0.1] = np.nan
    numbers = pl.Series(x).fill_nan(None)
    frame = pl.DataFrame({"x": numbers, LABEL: pl.Series(rng.random(4000) < 0.5).cast(pl.Float32)})
    which = rng.integers(0, 3, 4000).astype(np.uint8)
    data = config(dense={"x": DenseConfig(transform=["log"])})
    [f] = look_at(data, frame, which, 5).features
    train = x[(which == 0) & ~np.isnan(x)]
    assert f.numbers is not None and f.numbers.histogram is not None and f.numbers.spans[0] is not None
    span = f.numbers.spans[0]
    assert span["mean"] == pytest.approx(train.mean()) and span["std"] == pytest.approx(train.std())
    assert (span["min"], span["max"], span["5%"]) == (train.min(), train.max(), pytest.approx(np.quantile(train, 0.05)))
    assert f.missing[0] == pytest.approx(np.isnan(x[which == 0]).mean())
    assert f.numbers.histogram.unit > 0 and f.numbers.histogram.counts.sum() == (~np.isnan(x)).sum()
    bounds = np.quantile(train, np.arange(1, 10) / 10)
    cells = np.bincount(np.searchsorted(bounds, train), minlength=10)
    assert f.cells["train"].to_list() == [*cells, np.isnan(x[which == 0]).sum()]
    positive = (frame[LABEL].to_numpy() > 0.5) & (which == 0)
    assert f.cells["positives"][0] == (positive & (x <= bounds[0])).sum()
    monkeypatch.setattr(profiler, "SAMPLE_ROWS", 300)
    [f] = look_at(data, frame, which, 5).features
    assert f.numbers is not None and (f.numbers.sampled, f.numbers.seen) == (300, (which == 0).sum())
    assert not f.exact and f.distinct == pytest.approx(len(np.unique(train)), rel=0.05)
    assert f.numbers.spans[0]["mean"] == pytest.approx(train.mean())  # type: ignore[index]


def test_bins_of_whole_numbers_are_between_them() -> None:
    found = histogram([np.array([0.0, 1, 1, 2, 5]), np.array([9.0]), np.array([])], time=False)
    assert found is not None and found.edges.tolist() == [i - 0.5 for i in range(11)]
    skewed = histogram([np.array([0.0] * 50 + [1, 2, 10, 100_000.0])] * 3, time=False)
    assert skewed is not None and skewed.unit == 1.0
    raw = from_axis(skewed.edges, 1.0)
    assert np.allclose(raw - 0.5, np.round(raw - 0.5)) and skewed.counts.sum() == 162


def test_every_kind_of_feature() -> None:
    n = 400
    rng = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "x": rng.integers(0, 3, n).astype(float),
            "at": pl.Series(1_700_000_000_000_000 + rng.integers(0, 10**12, n)).cast(pl.Datetime("us")),
            "ctr": [f"u{i % 9}" for i in range(n)],
            "s": ["a"] * n,
            "bag": [[f"t{j}" for j in range(i % 4)] or None for i in range(n)],
            "pair": [f"{'' if i % 2 else 'l'}\x1f{'' if i % 2 else 'r'}" for i in range(n)],
            "hashed": [f"h{i}" for i in range(n)],
            "q": rng.normal(size=n),
            LABEL: pl.Series(rng.random(n) < 0.5).cast(pl.Float32),
        }
    )
    data = config(
        dense={
            "x": DenseConfig(transform=["standardise"]),
            "at": DenseConfig(column="t", cyclic=["hour", "month"]),
            "ctr": DenseConfig(column="u", transform=["target"]),
        },
        sparse={
            "s": SparseConfig(),
            "bag": SparseConfig(split=" "),
            "pair": SparseConfig(cross=["a", "b"]),
            "hashed": SparseConfig(encode="hash", buckets=50),
            "q": SparseConfig(quantiles=4),
        },
    )
    which = np.repeat([0, 1, 2], [200, 100, 100]).astype(np.uint8)
    found = look_at(data, frame, which, 3)
    by = {f.name: f for f in found.features}
    kinds = {n: f.kind for n, f in by.items()}
    assert list(kinds) == ["x", "at", "ctr", "s", "bag", "pair", "hashed", "q"]
    assert list(kinds.values()) == ["dense", "time", "target", "sparse", "bag", "cross", "sparse, hashed", "quantiles"]
    assert set(by["at"].parts) == {"hour", "month"} and by["at"].parts["hour"]["train"].sum() == 200
    assert by["bag"].missing == (0.25, 0.25, 0.25) and by["bag"].lengths is not None
    assert by["bag"].lengths["train"].to_list() == [50] * 4 and by["bag"].cells["train"].to_list() == [150, 100, 50]
    assert by["pair"].missing[0] == 0.5 and by["pair"].cells["special"].to_list() == [True, False]
    assert by["hashed"].oov is None and by["ctr"].oov == (0.0, 0.0)
    tables = {t.name: t for t in found.tables}
    assert (tables["hashed"].rows, tables["q"].rows, tables["bag"].rows) == (51, 6, 4)
    assert (tables["hashed"].used or 0) <= 50 < tables["hashed"].distinct == 200
    Plain(write(found, bad_rows=3))  # which has all tags closed


def test_tables_that_are_shared_count_together() -> None:
    frame = pl.DataFrame({"a": ["x", "x", "y"], "b": ["y", "z", "z"], LABEL: pl.Series([0, 1, 0], dtype=pl.Float32)})
    data = config(sparse={"a": SparseConfig(table="t", min_count=2), "b": SparseConfig(table="t")})
    [t] = look_at(data, frame, np.zeros(3, np.uint8)).tables
    assert (t.features, t.rows, t.distinct, t.lookups, t.min_count) == (("a", "b"), 4, 3, 6, 2)


def test_long_bags_share_cells_by_powers_of_two() -> None:
    bags = [["a"] * n for n in range(100)]
    frame = pl.DataFrame({"b": bags, LABEL: pl.Series([0.0] * 99 + [1.0], dtype=pl.Float32)})
    [f] = look_at(config(sparse={"b": SparseConfig(split=" ")}), frame, np.zeros(100, np.uint8)).features
    assert f.lengths is not None
    assert f.lengths["label"].to_list() == ["0 – 1", *(f"{2**i} – {2 ** (i + 1) - 1}" for i in range(1, 7))]
    assert f.lengths["train"].to_list() == [2, 2, 4, 8, 16, 32, 36] and f.lengths["positives"][6] == 1


numbers = st.one_of(st.none(), st.floats(-3.4e38, 3.4e38), st.integers(-(2**62), 2**62).map(float))
texts = st.one_of(st.none(), st.text(max_size=60), st.sampled_from(["", "<script>alert(1)</script>", "\x1f", "\x00"]))
rows = st.tuples(numbers, texts, st.one_of(st.none(), st.lists(texts.filter(bool), max_size=4)), st.booleans())


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=30), st.data())
def test_any_values(given: list[Any], data: st.DataObject) -> None:
    n = len(given)
    frame = pl.DataFrame(
        [
            pl.Series("x", [r[0] for r in given], dtype=pl.Float64),
            pl.Series("q", [r[0] for r in given], dtype=pl.Float64),
            pl.Series("<b>s", [r[1] for r in given], dtype=pl.String),
            pl.Series("bag", [r[2] for r in given], dtype=pl.List(pl.String)),
            pl.Series(LABEL, [float(r[3]) for r in given], dtype=pl.Float32),
        ]
    )
    which = np.array([0, *data.draw(st.lists(st.integers(0, 2), min_size=n - 1, max_size=n - 1))], np.uint8)
    of = config(
        label=LabelConfig(kind="regression"),  # which may be the same in all rows
        dense={"x": None},
        sparse={"<b>s": SparseConfig(), "bag": SparseConfig(split=" "), "q": SparseConfig(quantiles=3)},
    )
    found = look_at(of, frame, which)
    assert sum(found.rows) == n
    html = write(found)
    seen = Plain(html)
    assert seen.tags.count("script") == 1 and "b" in seen.tags and "<b>s" in seen.text
    assert ">nan<" not in html and '="nan"' not in html


def test_rows_are_those_that_are_prepared(tmp_path: Path) -> None:
    """The same splits as training's, by time and at random; nothing is left behind."""
    (tmp_path / "raw").mkdir()
    lines = [f"{i % 2},{(i * 37) % 300},v{i % 5}" for i in range(300)]
    (tmp_path / "raw" / "a.csv").write_text("label,t,s\n" + "\n".join(lines) + "\n")
    for by in ("time", "random", "order"):
        data = config(
            prepared=str(tmp_path / "p"),
            sparse={"s": SparseConfig()},
            split=SplitConfig(by=by, column="t" if by == "time" else None),
        )
        data = replace(data, root=str(tmp_path / "raw"))
        prepared = prepare(data)
        which = np.concatenate([w for _, w in parsed_rows(data)])
        assert np.bincount(which).tolist() == [prepared.rows(s) for s in ("train", "validation", "test")]
