"""One value has one meaning: whatever the format that trained, each door gives the same features, or refuses the value.

tests/helpers/doors.py has the table of types and of the ways to write their values, model_doors.py that of doors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import requests
from doors import FORMATS, TYPES, Case, Table, json_text, tables, write_frame, write_training_rows, yaml_of
from hypothesis import Phase, example, given, settings
from model_doors import DOORS, Model, Outcome, file_outcomes, predict_json, same, single
from raw_rows import of_yaml

import recsys
from recsys.base.console import say_once
from recsys.base.errors import UserError
from recsys.data.prepare.prepared import prepare
from recsys.online.predictor import file_blocks
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms
from recsys.store.materialise import materialise
from recsys.store.request_features import OnlineFeatures
from recsys.store.stores import open_store
from recsys.store.views import View

SMALL = ["model=dlrm", "model.dim=4", "model.bottom_mlp=[4]", "model.top_mlp=[4]", "data.split.test=0.2"]
TRAINER = ["trainer.threads=1", "trainer.max_epochs=1", "trainer.batch_size=64"]
FAST = {"phases": [Phase.explicit, Phase.generate], "deadline": None}  # all disagreements are shown, none is shrunk
FOUND = Table(  # what disagreed once
    [
        Case("row", 1, "spaces"),  # " 1 " as encode=id was a row in CSV alone
        Case("point", 2**63 - 1, "point"),  # text of a whole number lost digits on its way
        Case("whole", 2**53 + 1, "point"),
        Case("zeros", "0010", "text"),  # a table of a pipeline read it as 10
        Case("numbers", (1,), "joined"),  # lists of typed files came as no text
        Case("tags", ("a0", "b1"), "joined"),
        Case("boolean", True, "upper"),  # one graph knew one form of each
        Case("flag", False, "digit"),
        Case("whole", 7, "point"),
    ],
    {"row": "spaces", "point": "point", "whole": "point", "numbers": "joined", "tags": "joined", "boolean": "upper"},
)
Models = Callable[[str], Model]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Train a model from a format, once."""
    models: dict[str, Model] = {}

    def model(format_: str) -> Model:
        if format_ not in models:
            home = tmp_path_factory.mktemp(format_)
            (home / "raw").mkdir()
            (home / "conf" / "data").mkdir(parents=True)
            (home / "conf" / "data" / "doors.yaml").write_text(yaml_of(format_))
            write_training_rows(home / "raw", format_)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(home)
                data = ["data=doors", f"data.root={home}/raw", f"data.prepared={home}/prepared", f"run_dir={home}/run"]
                models[format_] = Model(format_, recsys.train([*SMALL, *TRAINER, *data]).path)
        return models[format_]

    yield model
    for trained in models.values():
        trained.stop()


def expected(model: Model, table: Table) -> list[Outcome]:
    """What the run's own files give: of the usual types of the format, or of text where these cannot hold the value."""
    typed = FORMATS[model.format] != "text"
    usual = {n: t.typed if typed else t.text for n, t in TYPES.items()}
    (first, held), (second, also) = table.written(usual), table.written({n: t.text for n, t in TYPES.items()})
    assert held | also == {*range(len(table.cases))}
    found = [file_outcomes(model, frame, model.format) for frame in (first, second)]
    return [found[0][i] if i in held else found[1][i] for i in range(len(table.cases))]


def shown(o: Outcome) -> str:
    return f"refused: {o}" if isinstance(o, str) else f"{o.dense[0].tolist()} {o.ids[0].tolist()} {o.values}"


def compare(model: Model, table: Table, judged: dict[str, set[tuple[str, str]]] | None = None) -> None:
    """Ask all doors. judged: which types and writings a door held, to which it adds"""
    known, wrong = expected(model, table), []
    for name, door in DOORS.items():
        asked = door.ask(model, table)
        for i in sorted(asked.held):
            case, found, writing = table.cases[i], asked.outcomes[i], asked.writings[i]
            if judged is not None:
                judged.setdefault(name, set()).add((case.type, writing))
            if not same(found, known[i]):
                what = f"{name}: {case.type}: {case.value!r} as {writing}"
                wrong.append(f"{what}: {shown(found)}, and in a file of the run's format {shown(known[i])}")
    assert not wrong, "\n".join(wrong)


@example(FOUND)
@settings(max_examples=2, **FAST)
@given(tables(most=2))
def test_every_door(model_of: Models, table: Table) -> None:
    compare(model_of("parquet"), table)


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
@example(FOUND)
@settings(max_examples=3, **FAST)
@given(tables())
def test_every_door_after_every_format(model_of: Models, format_: str, table: Table) -> None:
    compare(model_of(format_), table)


@pytest.mark.slow
def test_every_writing_at_every_door(model_of: Models) -> None:
    """The values of training rows and missing ones: no door leaves out a type, and no writing is left out by all."""
    judged: dict[str, set[tuple[str, str]]] = {}
    cases = {n: [t.default, t.trained(4), None] for n, t in TYPES.items()}
    for k in range(max(len(t.writings) for t in TYPES.values())):
        table = Table([Case(n, v, k) for n, values in cases.items() for v in values], dict.fromkeys(TYPES, k))
        compare(model_of("csv" if k % 2 else "parquet"), table, judged)
    in_graph = {"text", "zeros", "whole", "point", "row", "number", "boolean", "flag", "day"}
    for door in DOORS:
        assert {n for n, _ in judged[door]} == (in_graph if door == "single_graph.onnx" else {*TYPES}), door
    written = set.union(*judged.values())
    assert written == {(n, w) for n, t in TYPES.items() for w in t.writings}


def test_what_a_door_cannot_hold(model_of: Models, tmp_path: Path) -> None:
    """It refuses, and says where."""
    model = model_of("csv")
    row = Table([Case("text", "t1")], {}).rows(lambda w: not w.typed)[0][0]
    sent = json_text({"rows": [row]}).replace('"number": 2.0', '"number": Infinity')
    assert "Infinity" in sent
    answer = requests.post(f"{model.served.url}/predict", data=sent.encode(), timeout=20)
    assert answer.status_code == 400 and "the body is not JSON" in answer.text
    for value, why in ((float("inf"), r"row 0: number=inf: is infinite"), (pl.Decimal(4, 2), "which a store does not")):
        column = pl.Series([1]).cast(value) if isinstance(value, pl.DataType) else pl.Series([value])
        pl.DataFrame({"user": ["a"], "at": [1], "number": column}).write_parquet(tmp_path / "f.parquet")
        view = View("v", (str(tmp_path / "f.parquet"),), "user", "at", ("number",))
        with pytest.raises(UserError, match=why):
            materialise({"v": view}, open_store(f"sqlite:///{tmp_path}/f.db", write=True))
    # a time that is a category is compared as it is written
    ids = [
        model.pipeline.arrays({**row, "day": day}).ids.tolist() for day in ("2024-01-02", date(2024, 1, 2), "2024-1-2")
    ]
    assert ids[0] == ids[1] != ids[2]


MARKED = """name: marked
source: {format: csv, files: [a.csv], separator: ';', decimal: ',', thousands: '.', strip: true, null_values: ['-', '9']}
label: {column: y}
dense: {price: {}, count: {}}
sparse: {user: {}, flag: {}}
"""


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("price", ["1.234,5", 1234.5, Decimal("1234.5"), " 1234,5 "]),  # 1234.5 was read as 12,345 in rows
        ("price", ["1.000", 1000, 1000.0, "1000,0"]),
        ("price", ["-", None, "", math.nan]),
        ("count", ["3", 3, 3.0, " 3"]),
        ("count", ["9", 9, 9.0, "-", None]),  # a number may be a missing value, too
        ("user", ["7", 7, 7.0, " 7 "]),
        ("user", ["9", 9, 9.0, "-", None]),
        ("flag", ["True", True, " true ", 1]),
    ],
)
def test_marks_and_missing_values_of_text(column: str, values: list[Any], tmp_path: Path) -> None:
    """Numbers have no marks, whatever the marks of the training rows' text."""
    (tmp_path / "raw").mkdir()
    lines = (f"{i % 2};{1 + i // 100}.{i % 100:03d},5;{i % 7 + 1};{i % 9 + 1};{bool(i % 3)}\n" for i in range(200))
    (tmp_path / "raw" / "a.csv").write_text("y;price;count;user;flag\n" + "".join(lines))
    folder = prepare(of_yaml(f"{MARKED}root: {tmp_path}/raw\nprepared: {tmp_path}/p\n")).folder
    rows, pipeline = RawRows.load(folder), RowTransforms.load(folder)
    usual = {"price": "1.100,5", "count": "2", "user": "2", "flag": "False"}
    expected = pipeline.frame({**usual, column: values[0]})
    for value in values:
        assert pipeline.frame({**usual, column: value}).equals(expected), value
        assert single(pipeline.arrays({**usual, column: value}))[0].dense.tolist() == [[*expected.row(0)[:2]]], value
        frame = pl.DataFrame([{**usual, column: value}])
        frame.write_parquet(tmp_path / "f.parquet")
        [(parsed, bad)] = file_blocks(rows, tmp_path / "f.parquet")
        for found in (rows.parse_frame(frame)[0], parsed):
            assert rows.fitted.apply(found).equals(expected) and not bad, value


BROUGHT = """name: brought
source: {format: parquet, files: [a.parquet], joins: [{file: s.parquet, key: code, columns: {weight: weight, ok: ok}}]}
label: {column: y}
dense: {weight: {}}
sparse: {ok: {}}
"""


def test_joined_columns_that_rows_and_frames_bring(tmp_path: Path) -> None:
    """They mean what the side table's do; a frame's value of another kind was missing without a word."""
    (tmp_path / "raw").mkdir()
    side = pl.DataFrame({"code": range(20), "weight": [i / 4 for i in range(20)], "ok": [i % 3 > 0 for i in range(20)]})
    side.write_parquet(tmp_path / "raw" / "s.parquet")
    log = pl.DataFrame({"y": [i % 2 for i in range(200)], "code": [i % 20 for i in range(200)]})
    log.write_parquet(tmp_path / "raw" / "a.parquet")
    folder = prepare(of_yaml(f"{BROUGHT}root: {tmp_path}/raw\nprepared: {tmp_path}/p\n")).folder
    rows, pipeline = RawRows.load(folder), RowTransforms.load(folder)
    expected = pipeline.frame({"code": 8})
    for own in ({"weight": 2, "ok": True}, {"weight": "2.0", "ok": "TRUE"}, {"weight": Decimal("2.00"), "ok": 1}):
        for code in (8, 99):
            assert pipeline.frame({"code": code, **own}).equals(expected)
            parsed, bad = rows.parse_frame(pl.DataFrame([{"code": code, **own}]))
            assert rows.fitted.apply(parsed).equals(expected) and not bad
    for column, value, why in (("weight", "x", "is not a number"), ("ok", "maybe", "is neither true nor false")):
        with pytest.raises(UserError, match=f"^column {column}: '{value}' {why}$"):
            pipeline.arrays({"code": 8, column: value})
        [refused] = rows.parse_frame(pl.DataFrame([{"code": 8, column: value}]))[1]
        assert (refused.column, refused.problem) == (column, why)


GROUPED = """name: grouped
source: {format: FORMAT, files: ['a.*']}
label: {column: y}
group: {by: user, order: at}
sparse: {item: {}, before: {column: item, last: 3}, previous: {column: item, lag: 1}, flags: {column: flag, last: 2}}
"""


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_groups_and_their_order_by_values_of_other_types(format_: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    at = [datetime(2024, 1, 1) + timedelta(minutes=13 * i) for i in range(200)]
    log = pl.DataFrame({"y": [i % 2 for i in range(200)], "user": [i % 9 for i in range(200)], "at": at})
    log = log.with_columns(item=pl.col("user") % 7, flag=pl.col("y") == 1)
    write_frame(log, tmp_path / "raw" / f"a.{format_}")
    text = GROUPED.replace("FORMAT", format_)
    folder = prepare(of_yaml(f"{text}root: {tmp_path}/raw\nprepared: {tmp_path}/p\n")).folder
    rows, pipeline = RawRows.load(folder), RowTransforms.load(folder)
    noon = datetime(2024, 2, 1, 12)
    times = [noon + timedelta(milliseconds=500), noon + timedelta(milliseconds=250), noon, noon - timedelta(days=1)]
    users: list[list[Any]] = [[1, 1, 1, 2], [1.0, 1.0, 1.0, 2.0], ["1", "1", "1", "2"], ["1.0", "1.0", "1.0", "2.0"]]
    moments: list[list[Any]] = [
        times,
        [t.isoformat() for t in times],
        [t.isoformat(sep=" ") + "Z" for t in times],
        [t.replace(tzinfo=UTC).timestamp() for t in times],
    ]
    found = []
    for user, moment in product(users, moments):
        given = [
            {"user": u, "at": t, "item": i + 1, "flag": i % 2}
            for i, (u, t) in enumerate(zip(user, moment, strict=True))
        ]
        parsed, bad = rows.parse_frame(pl.DataFrame(given))
        assert not bad
        found += [pipeline.frame(given), rows.fitted.apply(rows.in_context(parsed))]
        assert pipeline.arrays(given).lengths["before"].tolist() == [2, 1, 0, 0]
    assert found[0]["before"].list.len().to_list() == [2, 1, 0, 0] and all(f.equals(found[0]) for f in found)


def test_an_old_run_says_that_it_has_no_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It predicts as it did: the number 7.0 of a row is the text 7.0."""
    say_once.cache_clear()
    old = RawRows.load(Path(__file__).parent / "old_runs" / "artefact" / "pipeline")
    name = next(n for n, c in old.fitted.data.sparse_columns.items() if old.types.get(c.column) == pl.String)
    column = old.fitted.data.sparse_columns[name].column
    old.parse_frame(pl.DataFrame({column: [7, 8]}))
    said = capsys.readouterr().err
    assert f"the data frame: column {column} is Int64, and text in this older run; train again" in said
    assert old.meanings[column].read(7.0) == "7.0"


@pytest.mark.parametrize("value", [True, "True", "true", 7, 7.0, Decimal("7.00"), "7"])
def test_keys_of_a_store(value: Any, tmp_path: Path) -> None:
    """The key of stored values is text as Parquet holds it: 7, and true for a boolean; other text is another key."""
    pl.DataFrame({"user": [7], "at": [1], "age": [31]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"user": [True], "at": [1], "age": [32]}).write_parquet(tmp_path / "b.parquet")
    views = {n: View(n, (str(tmp_path / f"{n}.parquet"),), "user", "at", ("age",)) for n in ("a", "b")}
    store = open_store(f"sqlite:///{tmp_path}/f.db", write=True)
    materialise(views, store)
    [row] = OnlineFeatures(views, store).join([{"user": value}])
    found = {"True": None, "true": 32, "7": 31} if isinstance(value, str) else {True: 32, 7: 31}
    assert row.get("age") == found[value]


def test_refusals_name_column_and_row(model_of: Models) -> None:
    model = model_of("parquet")
    row = Table([Case("text", "t1")], {}).rows(lambda w: not w.typed)[0][0]
    for column, value, why in (
        ("whole", 7.5, "is not a whole number"),
        ("boolean", "maybe", "is neither true nor false"),
        ("instant", "x", "is not a time"),
        ("numbers", ["1", "x"], "is not a whole number"),
        ("row", 10, "is not a whole number from 0 to 9"),
    ):
        answer = predict_json(model, [row, {**row, column: value}])
        assert isinstance(answer, str) and answer.startswith(f"rows[1]: column {column}: ") and why in answer
