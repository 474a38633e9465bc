"""Dialects, kinds of columns, times, labels and names are found in values of which the answer is known."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.raw.dialect import SPACES
from recsys.new.column_kinds import Column
from recsys.new.find_kinds import columns_of
from recsys.new.find_layout import dialect_of, encoding_of
from recsys.new.known_names import NAMES, names_an_id_of, rank_of, words
from recsys.new.label import choose, label_of
from recsys.new.leaks import leaks
from recsys.new.proposal import split_by_time
from recsys.new.propose_features import feature_name
from recsys.new.roles import assign, name_unnamed

WORDS = st.text("abcdefghijkl", min_size=1, max_size=8)
RNG = np.random.default_rng(0)
CLICK = RNG.random(4000) < 0.2
BOUGHT = CLICK & (RNG.random(4000) < 0.3)


def column(name: str, values: Any) -> Column:
    [found], _ = columns_of(pl.DataFrame({name: values}))
    return found


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Names and rows of text: at least one column of numbers, so that a header can be told from rows."""
    width, rows = draw(st.integers(3, 8)), draw(st.integers(8, 30))
    names = draw(st.lists(WORDS, min_size=width, max_size=width, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numeric = [True, *(bool(draw(st.booleans())) for _ in range(width - 1))]
    return names, [[f"{rng.normal():.3f}" if n else f"w{rng.integers(9)}" for n in numeric] for _ in range(rows)]


@settings(deadline=None, max_examples=60)
@given(
    tables(),
    st.sampled_from(["\t", ",", ";", "|", "::", "||", "\x01", ", ", "   "]),
    st.booleans(),
    st.sampled_from(["", '"', "\n"]),
)
def test_separator_header_and_quotes(
    table: tuple[list[str], list[list[str]]], separator: str, header: bool, quoted: str
) -> None:
    names, rows = table
    text = [list(r) for r in ([names] if header else []) + rows]
    if quoted and len(separator) == 1:
        for row in text[header:]:
            row[-1] = f'"{row[-1]}{separator}{quoted.replace(chr(34), chr(34) * 2)}x"'
    d = dialect_of("\n".join(separator.join(r) for r in text) + "\n")
    assert d.separator == {", ": ",", "   ": SPACES}.get(separator, separator)
    assert d.header == header and d.width == len(names) and d.strip == (separator == ", ")
    assert d.columns == names if header else len(d.columns) == len(names)
    assert d.line_breaks_in_quotes == (quoted == "\n" and len(separator) == 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 10 11 12\n2 13\n3 10 14 15 16\n", {"format": "lists", "columns": ["user", "item"]}),
        ("1 3:1 7:1\n-1 4:1 9:1\n", {"format": "libfm"}),
        ("size,label\n" + "".join(f'{i}" wide,{i % 2}\n' for i in range(40)), {"quote": None, "width": 2}),
        ("a;b\n" + "".join(f"{i},5;{i},25\n" for i in range(30)), {"separator": ";", "width": 2}),
        ("a;b;c\n" + "".join(f"{i};{'' if i % 9 else 'x'};{i}\n" for i in range(30)), {"separator": ";", "width": 3}),
        (",,price,click\n" + "".join(f"{i},u{i},{i / 9},1\n" for i in range(30)), {"renamed": True, "header": True}),
        ("u3,,,1\n" + "".join(f"u{i},{i},{i / 9},1\n" for i in range(30)), {"header": False}),
        ("".join(f"user_{i}\t2009-05-{1 + i % 28:02d}\tid-{i % 9}\n" for i in range(60)), {"header": False}),
        ("a,b\nx,y\nx,z\nw,y\nx,y\nw,z\n", {"header": True}),
        ("x,y\nx,z\nw,y\nx,y\nw,z\n", {"header": False}),
        ("To be, or not to be.\nThat is the question, or it is nobler\nin the mind\n", {"width": 0}),
    ],
)
def test_dialects(text: str, found: dict[str, Any]) -> None:
    d = dialect_of(text)
    assert {name: getattr(d, name) for name in found} == found


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *(("utf-8", "Käse"), ("utf-8-sig", "Käse"), ("utf-16", "Käse"), ("cp1252", "Größe; Fuß; Öl")),
        *(("gb18030", "用户 商品"), ("cp949", "고객번호 상품번호"), ("cp1251", "Клиент Товар Дата")),
    ],
)
def test_encodings(encoding: str, text: str) -> None:
    raw = (f"name;price\n{text};3,50\n" * 200).encode(encoding)
    found, why = encoding_of(raw)
    assert raw.decode(found).removeprefix("\ufeff").splitlines()[1] == f"{text};3,50"
    assert bool(why) == (not encoding.startswith("utf"))


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
        ("user_pseudo_id", [f"{62265 + i % 90}40.1690000{i % 90:03d}" for i in range(300)], "id"),
        ("genres", ["Action|Comedy", "Drama", "Action|Drama|Crime", "Comedy"] * 50, "list"),
        ("tags", [" ".join(f"t{(i * j) % 11}" for j in range(1, 2 + i % 4)) for i in range(400)], "list"),
        ("GrLivArea", [str(334 + i * 7919 % 1200) for i in range(3000)], "number"),
        ("column_2", [str(i * 7919 % 900) for i in range(3000)], "id"),
        ("C14", [str(375 + 400 * (i % 60)) for i in range(3000)], "category"),
        ("title", [f"The tale of {i} and the {i * 7 % 100} wolves" for i in range(300)], "text"),
        (
            "salary",
            ["1,000 - 5,000", "10,000 - 50,000", "1,000,000 - 5,000,000", "50,000+", "5,000 - 9,000"] * 80,
            "category",
        ),
        ("same", ["a"] * 50, "unused"),
        ("none", [None] * 50, "unused"),
        ("ts", [str(1_700_000_000 + 977 * i) for i in range(300)], "time"),
        ("when", [f"2024-01-{1 + i % 28:02d}T10:00:00Z" for i in range(300)], "time"),
        ("d", [f"{1 + i % 28:02d}.02.2024" for i in range(300)], "time"),
        ("day", [str(20240101 + i % 28) for i in range(300)], "time"),
        ("hour", [str(i % 24) for i in range(300)], "category"),
        ("author", [f"Smith, {'ABCDEFGHIJ'[i % 10]}{i % 5}" for i in range(300)], "category"),
        ("vector", RNG.normal(size=(50, 3)).tolist(), "vector"),
        ("ids", [[1, 2], [3]] * 25, "list"),
        ("ragged", [[0.5], [0.1, 0.2]] * 25, "unused"),
        ("as_text", [f"[{x:.3f}, {x / 2:.3f}]" for x in RNG.random(90)], "text"),
        ("badges", [["top"], *[[]] * 99], "unused"),
        ("flag", [True, False] * 25, "category"),
    ],
)
def test_kinds(name: str, values: list[Any], kind: str) -> None:
    assert column(name, values).kind.name == kind


@pytest.mark.parametrize(
    ("values", "decimal", "thousands", "doubt"),
    [
        (["1,5", "2,25", "-0,1"], ",", None, False),
        (["1.234,5", "2,25", "12.000"], ",", ".", False),
        (["1,234.5", "12", "1,000,000"], ".", ",", False),
        (["1.5", "2"], ".", None, False),
        (["1,234", "2,500"], ",", None, True),
    ],
)
def test_marks_in_numbers(values: list[str], decimal: str, thousands: str | None, doubt: bool) -> None:
    (c,), marks = columns_of(pl.DataFrame({"x": [v for v in values for _ in range(30)]}))
    assert (marks.decimal, marks.thousands, bool(marks.doubt)) == (decimal, thousands, doubt)
    assert c.kind.name in ("number", "category") and c.numbers is not None


def test_missing_values() -> None:
    x = [str(v) if v % 10 else "NA" for v in range(1, 300)]
    [c], marks = columns_of(pl.DataFrame({"x": x}))
    assert marks.null_values == ["NA"] and c.missing > 0
    assert columns_of(pl.DataFrame({"country": ["NA", "DE", "FR"] * 30}))[1].null_values == []
    assert column("y", [str(v * 13 % 250) if v % 7 else "-999" for v in range(1, 300)]).doubt


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(
        [
            *("%d/%m/%Y", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d-%b-%Y", "%Y-%m-%d", "%Y%m%d", "%y%m%d%H"),
            *("%Y%m%d%H%M%S", "%m/%d/%Y %I:%M:%S %p", "%a %b %d %H:%M:%S %Y"),
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
    ("values", "settings_"),
    [
        ([0, 1] * 40, {}),
        ([1, 2] * 40, {"at_least": 2}),
        ([-1, 1] * 40, {"at_least": 1}),
        ([1, 2, 3, 4, 5] * 40, {"at_least": 4}),
        (["yes", "no"] * 40, {"positive": ["yes"]}),
        (["no"] * 90 + ["won"] * 9, {"positive": ["won"]}),
        ([True, False] * 40, {}),
        (["view"] * 80 + ["cart"] * 20 + ["purchase"], {"positive": ["purchase"]}),
        (["red", "red", "green", "blue"] * 30, {"kind": "classes", "classes": ["red", "green", "blue"]}),
        (RNG.lognormal(3, 2, 300), {"kind": "regression", "log": True}),
        (RNG.normal(size=300), {"kind": "regression"}),
        ([f"id {i}" for i in range(3000)], None),
    ],
)
def test_labels(values: Any, settings_: dict[str, Any] | None) -> None:
    made = label_of(column("y", values))
    found = made and made.settings
    assert (
        sorted(found["classes"]) == sorted(settings_["classes"])
        if settings_ and "classes" in settings_
        else found == settings_
    )  # type: ignore[index]


def test_choice_of_the_label() -> None:
    frame = pl.DataFrame(
        {"weekend": RNG.integers(0, 2, 200), "price": RNG.normal(size=200), "clicked": RNG.integers(0, 2, 200)}
    )
    columns, _ = columns_of(frame)
    assign(columns)
    for asked, found in (("auto", "clicked"), ("weekend", "weekend")):
        assert choose(columns, asked, retrieval=False).column.name == found  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no such column; did you mean clicked"):
        choose(columns, "clickd", retrieval=False)


@pytest.mark.parametrize(
    ("values", "found", "asked"),
    [
        (BOUGHT.astype(int), True, False),
        (np.where(BOUGHT, "yes", "no"), True, False),
        ([f"{7.5 * i % 97:.2f}" if b else None for i, b in enumerate(BOUGHT)], True, False),
        (np.where(BOUGHT, RNG.lognormal(size=4000), 0.0), True, False),
        (RNG.choice(["a", "b"], 4000), False, False),
        (np.where(RNG.random(4000) < 0.1, 1, CLICK), True, False),  # a step before the label
        (np.where(CLICK & (np.arange(4000) < 30), 1, 0), False, True),  # of few rows
        (CLICK * 5.0 + RNG.random(4000), True, False),
        (CLICK + RNG.normal(0, 0.4, 4000), False, True),
        (RNG.normal(size=4000), False, False),
    ],
)
def test_leaks(values: Any, found: bool, asked: bool) -> None:
    columns, _ = columns_of(pl.DataFrame({"click": CLICK.astype(int), "x": values}))
    label = label_of(columns[0])
    assert label is not None
    assert tuple("x" in names for names in leaks(columns, label)) == (found, asked)


def test_a_value_that_is_missing_with_one_class() -> None:
    """Airbnb's date_first_booking is missing exactly if the country is NDF."""
    country = RNG.choice(["NDF", "US", "FR"], 4000, p=[0.6, 0.3, 0.1])
    frame = pl.DataFrame({"country": country, "age": RNG.integers(20, 70, 4000)})
    booked = pl.when(pl.col("country") != "NDF").then(pl.lit("2014-01-0") + (pl.int_range(4000) % 9 + 1).cast(str))
    columns, _ = columns_of(frame.with_columns(booked=booked))
    label = label_of(columns[0])
    assert label is not None and set(leaks(columns, label)[0]) == {"booked"}


def test_roles_and_names() -> None:
    frame = pl.DataFrame(
        {
            "reviewerID": [f"A{i}" for i in RNG.integers(0, 90, 300)],
            "user_age": RNG.integers(18, 90, 300),
            "asin": [f"B{i}" for i in RNG.integers(0, 80, 300)],
            "signup_date": [datetime(2020, 1, 1) + timedelta(days=int(i)) for i in RNG.integers(0, 900, 300)],
            "unixReviewTime": 1_400_000_000 + RNG.integers(0, 10**7, 300),
        }
    )
    roles = assign(columns_of(frame)[0])
    assert [c and c.name for c in (roles.user, roles.item, roles.time)] == ["reviewerID", "asin", "unixReviewTime"]
    assert words("userId") == words("user_id") == words("user-id:token") == ["user", "id"]
    assert names_an_id_of("userId", ("user",)) and not names_an_id_of("user_age", ("user",))
    assert names_an_id_of("beer_beerid", NAMES.items) and names_an_id_of("會員卡號", NAMES.users)
    assert rank_of("isClick", NAMES.labels) is not None and rank_of("clicker", NAMES.labels) is None
    taken: set[str] = set()
    made = [feature_name(n, taken) for n in ("user.id", "user/id", " a ", "label", "a", "[x]*", "7")]
    assert made == ["user_id", "user_id_2", "a", "label_", "a_2", "x", "c_7"]


@pytest.mark.parametrize(("days", "share"), [(100, 0.1), (4, 0.15)])
def test_split_by_time_leaves_no_split_empty(days: int, share: float) -> None:
    at = [datetime(2024, 1, 1) + timedelta(days=i % days) for i in range(400)]
    (time, clicked), _ = columns_of(pl.DataFrame({"day": at, "clicked": RNG.integers(0, 2, 400)}))
    made = split_by_time(time, label_of(clicked), "day")
    assert made is not None and made.settings["test"] == share


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([(u % 40, 1000 + u * 7 % 90) for u in range(400)], ["user", "item"]),
        ([(u % 40, 1000 + u * 7 % 90, 1 + u % 5) for u in range(400)], ["user", "item", "rating"]),
        (
            [(f"s{u % 40}", f"2024-01-{1 + u % 28:02d}T10:00:00Z", f"i{u % 90}") for u in range(400)],
            ["user", "timestamp", "item"],
        ),
        ([(u % 40, u * 7 % 90, 100 + u % 9, "pv", 1_511_544_070 + 977 * u) for u in range(400)], None),
        ([(u % 2, u * 0.37, f"c{u % 7}") for u in range(400)], None),
    ],
)
def test_names_of_a_log_without_a_header(rows: list[tuple[Any, ...]], names: list[str] | None) -> None:
    schema = [f"column_{i}" for i in range(len(rows[0]))]
    frame = pl.DataFrame([[str(v) for v in r] for r in rows], orient="row", schema=schema)
    assert name_unnamed(columns_of(frame)[0]) == names
