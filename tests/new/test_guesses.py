"""Dialects, kinds of columns, labels and times are guessed right on data of which the answer is known."""

import csv
import io
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.new.choose_label import choose
from recsys.new.column_kinds import Column
from recsys.new.find_dialect import SPACES, dialect_of
from recsys.new.find_kinds import columns_of
from recsys.new.find_layout import encoding_of
from recsys.new.known_names import NAMES, names_an_id_of, rank_of, words
from recsys.new.label import BinaryGuess, label_of
from recsys.new.layouts import ListsLayout
from recsys.new.leaks import leaks
from recsys.new.proposal import by_time
from recsys.new.propose_features import feature_name, features_of
from recsys.new.roles import assign, name_unnamed

WORDS = st.text("abcdefghijkl", min_size=1, max_size=8)
SEPARATORS = ["\t", ",", ";", "|", "::", "||", "\x01"]


def column(name: str, values: list[Any]) -> Column:
    [found], _ = columns_of(pl.DataFrame({name: values}))
    return found


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Names and rows of text: at least one column of numbers, so that a header can be told from rows."""
    width, rows = draw(st.integers(2, 8)), draw(st.integers(8, 30))
    names = draw(st.lists(WORDS, min_size=width, max_size=width, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numeric = [True, *(bool(draw(st.booleans())) for _ in range(width - 1))]
    make = lambda n: f"{rng.normal():.3f}" if n else f"w{rng.integers(9)}"  # noqa: E731
    return names, [[make(n) for n in numeric] for _ in range(rows)]


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from([*SEPARATORS, ", ", "   "]), st.booleans())
def test_separator_and_header(table: tuple[list[str], list[list[str]]], separator: str, header: bool) -> None:
    names, rows = table
    d = dialect_of([separator.join(r) for r in ([names] if header else []) + rows])
    assert d.separator == {", ": ",", "   ": SPACES}.get(separator, separator)
    assert d.header == header and d.width == len(names)
    assert d.strip == (separator == ", ")
    assert d.columns == names if header else len(d.columns) == len(names)
    assert d.fields(separator.join(rows[0])) == rows[0]


@settings(deadline=None, max_examples=40)
@given(tables(), st.sampled_from([",", ";", "\t", "|"]))
def test_quotes(table: tuple[list[str], list[list[str]]], separator: str) -> None:
    names, rows = table
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    quoted = [[f"a{separator} b", *r] for r in rows]
    writer.writerows([["where", *names], *quoted])
    assume("where" not in names)
    d = dialect_of(text.getvalue().split("\n"))
    assert (d.separator, d.quote, d.width) == (separator, '"', len(names) + 1)
    assert d.fields(text.getvalue().split("\n")[1]) == quoted[0]


def test_inches_are_no_quotes() -> None:
    assert dialect_of(["size,label", *(f'{i}" wide,{i % 2}' for i in range(1, 40))]).quote is None


@pytest.mark.parametrize(
    ("lines", "format_", "columns"),
    [
        (["1 10 11 12", "2 13", "3 10 14 15 16"], "lists", ["user", "item"]),
        (["i1 i2 i3", "i1 i4", "i3 i2 i9 i8"], "lists", ["item"]),
        (["1 3:1 7:1", "-1 4:1 9:1"], "libfm", []),
        (["1 3:1 7:1", "-1 4:0.5 9:1"], "svmlight", []),
        (["2 qid:1 1:1 # a", "0 qid:1 1:1 # b"], "svmlight", []),
        (['{"a": 1}', '{"a": 2}'], "jsonl", []),
    ],
)
def test_formats_of_text(lines: list[str], format_: str, columns: list[str]) -> None:
    d = dialect_of(lines)
    assert (d.format, d.columns) == (format_, columns)


def test_lists_without_users_are_numbered() -> None:
    lines = ["i1 i2", "i3", "i1 i4 i2"]
    rows = ListsLayout(separator=" ", columns=["item"], leading=["item"]).parse(lines)
    assert rows.to_dict(as_series=False) == {"list": [*"001222"], "item": ["i1", "i2", "i3", "i1", "i4", "i2"]}


def test_prose_has_no_columns() -> None:
    lines = ["To be, or not to be.", "That is the question, whether it is nobler", "in the mind to suffer"]
    assert dialect_of(lines).width == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252", "latin-1"])
def test_encodings(encoding: str) -> None:
    text = "name;price\n" + "Käse;3,50\nBrötchen;0,40\n" * 200
    found, why = encoding_of(text.encode(encoding))
    assert text.encode(encoding).decode(found).removeprefix("\ufeff") == text
    assert bool(why) == (encoding in ("cp1252", "latin-1", "utf-16-le"))


def test_decimal_commas_do_not_divide() -> None:
    d = dialect_of(["a;b", *(f"{i},5;{i},25" for i in range(30))])
    assert d.separator == ";" and d.width == 2
    assert dialect_of([f"{i},5;{i},25" for i in range(30)]).separator == ";"


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("price", [f"{i * 1.7:.2f}" for i in range(200)], "number"),
        ("age", [str(20 + i % 60) for i in range(300)], "number"),
        ("code", [str(100 * (i % 60)) for i in range(300)], "id"),
        ("x", [str(i % 9) for i in range(300)], "category"),
        ("zip", [f"{i % 90:05d}" for i in range(300)], "category"),
        ("row", [str(i) for i in range(300)], "row id"),
        ("user_id", [str(i % 200) for i in range(2000)], "id"),
        ("hash", [f"{i * 7919 % 999:x}" for i in range(3000)], "category"),
        ("genres", ["Action|Comedy", "Drama", "Action|Drama|Crime", "Comedy"] * 50, "list"),
        ("tags", [" ".join(f"t{(i * j) % 11}" for j in range(1, 2 + i % 4)) for i in range(400)], "list"),
        ("GrLivArea", [str(334 + i * 7919 % 1200) for i in range(3000)], "number"),
        ("Customers", [str(i * 7919 % 900) for i in range(3000)], "number"),
        ("column_2", [str(i * 7919 % 900) for i in range(3000)], "id"),
        ("invoice_number", [str(i * 7919 % 900) for i in range(3000)], "id"),
        ("InvoiceNo", [str(i * 7919 % 900) for i in range(3000)], "id"),
        ("entry", [str(i * 3 // 2 + i % 2) for i in range(400)], "id"),
        ("title", [f"The tale of {i} and the {i * 7 % 100} wolves" for i in range(300)], "text"),
        ("same", ["a"] * 50, "constant"),
        ("none", [None] * 50, "empty"),
        ("ts", [str(1_700_000_000 + 977 * i) for i in range(300)], "time"),
        ("when", [f"2024-01-{1 + i % 28:02d}T10:00:00Z" for i in range(300)], "time"),
        ("d", [f"{1 + i % 28:02d}.02.2024" for i in range(300)], "time"),
        ("day", [str(20240101 + i % 28) for i in range(300)], "time"),
        ("hour", [str(i % 24) for i in range(300)], "category"),
        ("phrase", ["Not in universe", "Never married", "Divorced"] * 50, "category"),
        ("author", [f"Smith, {'ABCDEFGHIJ'[i % 10]}{i % 5}" for i in range(300)], "category"),
        ("history", ["|".join(str((i * j) % 50) for j in range(1, 8)) for i in range(300)], "list"),
    ],
)
def test_kinds(name: str, values: list[Any], kind: str) -> None:
    assert column(name, values).kind.name == kind


def test_kinds_of_typed_columns() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "vector": rng.normal(size=(50, 3)).tolist(),
            "ids": [[1, 2], [3]] * 25,
            "ragged": [[0.5], [0.1, 0.2]] * 25,
            "nested": [{"a": 1}] * 50,
            "at": [datetime(2024, 1, 1) + timedelta(hours=i) for i in range(50)],
            "flag": [True, False] * 25,
        }
    )
    kinds = {c.name: c.kind.name for c in columns_of(frame)[0]}
    assert kinds == {
        "vector": "vector", "ids": "list", "ragged": "nested", "nested": "nested", "at": "time", "flag": "category",
    }  # fmt: skip


def test_missing_values() -> None:
    x = [str(v) if v % 10 else "NA" for v in range(1, 300)]
    frame = pl.DataFrame({"x": x, "y": [str(v * 13 % 250) if v % 7 else "-999" for v in range(1, 300)]})
    (x_column, y_column), marks = columns_of(frame)
    assert marks.null_values == ["NA"] and x_column.missing > 0
    assert y_column.nulls == ["-999"] and y_column.missing == pytest.approx(42 / 299, abs=0.01)
    country = pl.DataFrame({"country": ["NA", "DE", "FR"] * 30})
    assert columns_of(country)[1].null_values == []


@pytest.mark.parametrize(
    ("values", "decimal", "thousands"),
    [
        (["1,5", "2,25", "-0,1"], ",", None),
        (["1.234,5", "2,25", "12.000"], ",", "."),
        (["1,234.5", "12", "1,000,000"], ".", ","),
        (["1.5", "2"], ".", None),
    ],
)
def test_marks_in_numbers(values: list[str], decimal: str, thousands: str | None) -> None:
    (c,), marks = columns_of(pl.DataFrame({"x": [f"{v}" for v in values for _ in range(30)]}))
    assert (marks.decimal, marks.thousands) == (decimal, thousands)
    assert c.kind.name in ("number", "category") and c.numbers is not None


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(
        [
            "%d/%m/%Y",
            "%m/%d/%Y %H:%M",
            "%d.%m.%Y %H:%M:%S",
            "%d-%b-%Y",
            "%Y-%m-%d",
            "%Y%m%d",
            "%y%m%d%H",
            "%Y%m%d%H%M%S",
            "%d-%b-%y %H.%M.%S",
            "%d-%b-%y %I.%M.%S.%f %p",
        ]
    ),
    st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)),
    st.integers(3, 200),
)
def test_times_are_those_that_were_written(form: str, start: datetime, hours: int) -> None:
    moments = [(start + timedelta(hours=hours * i)).replace(microsecond=0) for i in range(300)]
    texts = [m.strftime(form) for m in moments]
    assume(len(set(texts)) > 20)
    c = column("event_time", texts)
    assert c.time is not None and c.time.moments is not None
    assert c.time.moments.to_list() == [datetime.strptime(t, form) for t in texts]
    if c.time.sql is not None:  # the SQL reads the same
        made = pl.DataFrame({"x": texts}).select(pl.sql_expr(c.time.sql.format("x"))).to_series()
        assert made.to_list() == c.time.moments.to_list()


@pytest.mark.parametrize(
    ("values", "at_least", "positive"),
    [
        ([0, 1], None, []),
        ([1, 2], 2, []),
        ([-1, 1], 1, []),
        ([1, 2, 3, 4, 5], 4, []),
        (["yes", "no"], None, ["yes"]),
        (["no"] * 9 + ["won"], None, ["won"]),
        ([True, False], None, []),
        (["view"] * 8 + ["cart"] * 2 + ["purchase"], None, ["purchase"]),
    ],
)
def test_labels(values: list[Any], at_least: float | None, positive: list[str]) -> None:
    made = label_of(column("y", values * 40))
    assert isinstance(made, BinaryGuess) and (made.at_least, made.positive) == (at_least, positive)
    assert 0 < made.share < 1


def test_labels_of_many_values() -> None:
    rng = np.random.default_rng(0)
    prices, heights = rng.lognormal(3, 2, 300), rng.normal(size=300)
    assert [label_of(column("y", list(v))).settings for v in (prices, heights)] == [  # type: ignore[union-attr]
        {"column": "y", "kind": "regression", "log": True},
        {"column": "y", "kind": "regression"},
    ]
    colours = label_of(column("y", ["red", "red", "red", "green", "green", "blue"] * 30))
    assert colours is not None and colours.settings == {
        "column": "y", "kind": "classes", "classes": ["red", "green", "blue"],
    }  # fmt: skip
    assert colours.values.to_list()[:6] == [0, 0, 0, 1, 1, 2]
    assert label_of(column("y", [f"id {i}" for i in range(3000)])) is None


def test_choice_of_the_label() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"weekend": rng.integers(0, 2, 200), "price": rng.normal(size=200), "clicked": rng.integers(0, 2, 200)}
    )
    columns, _ = columns_of(frame)
    assign(columns)
    assert choose(columns, "auto", retrieval=False).column.name == "clicked"  # type: ignore[union-attr]
    assert choose(columns, "weekend", retrieval=False).column.name == "weekend"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no such column; did you mean clicked"):
        choose(columns, "clickd", retrieval=False)
    columns, _ = columns_of(frame.select(pl.col("price").alias("x"), pl.col("price").alias("cost")))
    assert choose(columns, "auto", retrieval=False) is None
    many, _ = columns_of(
        frame.select(
            pl.col("price").alias("x"), "weekend", pl.col("clicked").alias("other"), pl.col("price").alias("cost")
        )
    )
    with pytest.raises(UserError, match="2 of 4 columns have two values"):
        choose(many, "auto", retrieval=False)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.booleans())
def test_leaks(seed: int, numeric: bool) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 400)
    copy = y * 5.0 + rng.random(400) if numeric else [f"v{v}" for v in y * 2]
    frame = pl.DataFrame(
        {
            "clicked": y,
            "copy": copy,
            "noise": rng.normal(size=400),
            "id": rng.integers(0, 300, 400),
            "hint": (y + rng.random(400)) > 0.7,
        }
    )
    columns, _ = columns_of(frame)
    label = label_of(columns[0])
    assert label is not None and set(leaks(columns, label)) == {"copy"}


def test_roles() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "reviewerID": [f"A{i}" for i in rng.integers(0, 90, 300)],
            "user_age": rng.integers(18, 90, 300),
            "asin": [f"B{i}" for i in rng.integers(0, 80, 300)],
            "signup_date": [datetime(2020, 1, 1) + timedelta(days=int(i)) for i in rng.integers(0, 900, 300)],
            "unixReviewTime": 1_400_000_000 + rng.integers(0, 10**7, 300),
            "sample_weight": rng.random(300),
        }
    )
    columns, _ = columns_of(frame)
    roles = assign(columns)
    names = [c.name if c else None for c in (roles.user, roles.item, roles.time, roles.weight)]
    assert names == ["reviewerID", "asin", "unixReviewTime", "sample_weight"]


def test_names() -> None:
    assert words("userId") == words("user_id") == words("user-id:token") == ["user", "id"]
    assert names_an_id_of("userId", ("user",)) and not names_an_id_of("user_age", ("user",))
    assert rank_of("isClick", NAMES.labels) is not None and rank_of("clicker", NAMES.labels) is None
    taken: set[str] = set()
    made = [feature_name(n, taken) for n in ("user.id", "user/id", " a ", "label", "a", "[x]*", "7")]
    assert made == ["user_id", "user_id_2", "a", "label_", "a_2", "x", "c_7"]


def test_features_say_why_columns_are_left_out() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "id": [f"r{i}" for i in range(300)],
            "title": [f"The tale of {i} and the wolf" for i in range(300)],
            "views": rng.lognormal(3, 2, 300),
            "height": rng.normal(size=300),
            "leak": rng.normal(size=300),
            "ip": [f"10.0.{i % 150}.{i % 150}" for i in range(300)],
        }
    )
    made = features_of(columns_of(frame)[0], {"leak": "known only afterwards"}, typed=True)
    assert {n for n, _ in made.left_out} == {"id", "title", "leak"}
    assert "pattern" in dict(made.left_out)["title"]
    assert {f.name: f.settings.get("transform", made.dense_defaults["transform"]) for f in made.dense} == {
        "views": ["log", "standardise"],
        "height": ["standardise"],
    }


@pytest.mark.parametrize(("days", "share"), [(100, 0.1), (4, 0.15), (2, None)])
def test_split_by_time_leaves_no_split_empty(days: int, share: float | None) -> None:
    rng = np.random.default_rng(0)
    at = [datetime(2024, 1, 1) + timedelta(days=i % days) for i in range(400)]
    (time, clicked), _ = columns_of(pl.DataFrame({"day": at, "clicked": rng.integers(0, 2, 400)}))
    if time.time is None:
        assert share is None
        return
    made = by_time(time, label_of(clicked), "day")
    assert (made and made.settings["test"]) == share


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([(u % 40, 1000 + u * 7 % 90) for u in range(400)], ["user", "item"]),
        ([(u % 40, 1000 + u * 7 % 90, 1 + u % 5) for u in range(400)], ["user", "item", "rating"]),
        (
            [
                (u % 40, u * 7 % 90, 100 + u % 9, ("pv", "buy", "cart")[u % 3], 1_511_544_070 + 977 * u)
                for u in range(400)
            ],
            ["user", "item", "column_3", "event", "timestamp"],
        ),
        (
            [(f"s{u % 40}", f"2024-01-{1 + u % 28:02d}T10:00:00Z", f"i{u * 7 % 90}") for u in range(400)],
            ["user", "timestamp", "item"],
        ),
        ([(u % 2, u * 0.37, f"c{u % 7}") for u in range(400)], None),
    ],
)
def test_names_of_a_log_without_a_header(rows: list[tuple[Any, ...]], names: list[str] | None) -> None:
    width = len(rows[0])
    frame = pl.DataFrame(
        [[str(v) for v in r] for r in rows], orient="row", schema=[f"column_{i}" for i in range(width)]
    )
    assert name_unnamed(columns_of(frame)[0]) == names


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        ([f"user_{i:06d}\t2009-05-{1 + i % 28:02d}T10:00:00Z\tid-{i % 9}" for i in range(60)], False),
        (["user\twhen\titem", *(f"u{i % 9}\t2009-05-{1 + i % 28:02d}\tid-{i % 9}" for i in range(60))], True),
        (['1,0,3,"Braund, Mr. ""X"" Harris"', *(f'{i},1,2,"Heikkinen, Miss {i}"' for i in range(60))], False),
        (["a,b", "x,y", "x,z", "w,y", "x,y", "w,z"], True),
        (["x,y", "x,z", "w,y", "x,y", "w,z"], False),
    ],
)
def test_header_of_text(lines: list[str], header: bool) -> None:
    d = dialect_of(lines)
    assert (d.header, d.quote) == (header, None if "\t" in lines[0] else '"')
