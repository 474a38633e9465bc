"""What strangers' files showed: recsys.new is sure, or it asks, or says in a line how to convert them.

A row of the tables is a log of clicks with other columns: the keys of the questions, of the YAML, and its inputs.
"""

import gzip
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from file_shapes import clicks, lines, shown
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.new.propose import propose
from recsys.new.questions import Answers
from recsys.new.write_config import document

RNG = np.random.default_rng(0)
ROWS = clicks().height
CORE = ("user", "item", "ts", "clicked")
Write = Callable[[Path], object]


@dataclass
class Case:
    """Files, and what recsys.new has to find.

    asked: the keys of the questions
    yaml: words KEY=VALUE of the YAML, see file_shapes.Shape
    inputs, left_out: columns that models read, and that they do not
    refused: words of the error, instead
    """

    write: Write
    asked: str = ""
    yaml: str = ""
    inputs: str = ""
    left_out: str = ""
    refused: str = ""
    answers: dict[str, Any] = field(default_factory=dict)


def frame(*drop: str, **columns: Any) -> pl.DataFrame:
    """Return clicks of users and items with other columns: values of all rows, expressions, or names of columns."""
    given = {n: pl.Series(n, v, strict=False) if isinstance(v, list | np.ndarray) else v for n, v in columns.items()}
    return clicks().select(CORE).with_columns(**given).drop(drop)


def log(*drop: str, separator: str = ",", **columns: Any) -> Write:
    """Return what writes log.csv."""
    return lambda f: (f / "log.csv").write_text(lines(frame(*drop, **columns), separator))


def named(*names: str, separator: str = ",", encoding: str = "utf-8") -> Write:
    """Return what writes clicks under other names of the user, the item, the time and the label."""
    renamed = frame().rename(dict(zip(CORE, names, strict=True)))
    return lambda f: (f / "log.csv").write_bytes(lines(renamed, separator).encode(encoding))


def files(**frames: pl.DataFrame | str | bytes) -> Write:
    """Return what writes files; __ in a name stands for a point, and ___ for a folder."""

    def write(folder: Path) -> None:
        for name, content in frames.items():
            file = folder / name.replace("___", "/").replace("__", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            content = lines(content) if isinstance(content, pl.DataFrame) else content
            file.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def text(content: str, name: str = "log.csv") -> Write:
    return lambda f: (f / name).write_text(content)


def answers(**given: Any) -> dict[str, Any]:
    return given


def ints(high: int, low: int = 0) -> list[int]:
    return [int(x) for x in RNG.integers(low, high, ROWS)]


def some(share: float, value: Any, other: Any = None) -> pl.Expr:
    """Return an expression that has a value in a share of the rows, and another one in the others."""
    taken = pl.int_range(pl.len()) * 7919 % ROWS < share * ROWS
    then, otherwise = (v if isinstance(v, pl.Expr) else pl.lit(v) for v in (value, other))
    return pl.when(taken).then(then).otherwise(otherwise)


CLICKED, TS = pl.col("clicked"), pl.col("ts")
DAY = pl.from_epoch("ts").dt.date()
ITEMS = clicks().select("item").unique(maintain_order=True).with_row_index("n")
SHOWN = frame().with_row_index("impression_id", 10_000)
FILMS = "".join(f"{m}:\n" + "".join(f"{u},{u % 5}\n" for u in range(50)) for m in range(40))
RECORDS = "\n".join(f"beer/name: b{i}\nreview/score: {i % 5}\nreview/user: u{i}\n" for i in range(20))
TABLE = lines(frame())
TAGS = ["|".join(f"t{j}" for j in RNG.choice(9, RNG.integers(1, 4), replace=False)) for _ in range(ROWS)]
SLOTS = "".join(f"click:{i % 2} 101:{i % 60} 205:{i % 7} 205:{i % 5} 206:{i % 50}\n" for i in range(300))
MATRIX = "\n".join(",".join(map(str, row)) for row in RNG.uniform(-10, 10, (200, 40)).round(2))
ADULT = "".join(
    f"{i % 70}, {'Private' if i % 3 else '?'}, {i * 7919 % 990}, {'<=50K' if i % 4 else '>50K'}E\n" for i in range(600)
)
NO_LABEL = {"label": None}

CASES: dict[str, Case] = {
    # splits
    "split by names of files": Case(files(treino___a__csv=frame(), teste___a__csv=frame()), yaml="split.by=files"),
    "latest and contest are no tests": Case(files(latest__csv=frame()), yaml="split.by=time"),
    "a file of no split": Case(files(train__csv=frame(), holdout__csv=frame(), fresh__csv=frame()), "files files"),
    "files beside one that tests": Case(files(u__data=TABLE, u1__base=TABLE, u1__test=TABLE), "files files"),
    "adult.data and adult.test": Case(
        files(adult__data=ADULT.replace("E", ""), adult__test="|1x3 Cross validator\n" + ADULT.replace("E", ".")),
        "label",
        "source.comment=| label.positive='>50K,>50K.' split.by=files",
    ),
    "a column of splits": Case(
        log(eval_set=["prior", "train", "prior", "test"] * (ROWS // 4)), "split", left_out="eval_set"
    ),
    "test rows without a label": Case(
        files(train__csv=frame(), dev__csv=frame(), test__csv=frame(clicked=[-1] * ROWS)), "kind"
    ),
    # first lines
    "a header with numbers": Case(
        text("kunde,produkt,101,gekauft\n" + "".join(f"k{i % 40},p{i % 30},{i % 9},{i % 2}\n" for i in range(300))),
        "header",
        "label.column=gekauft",
    ),
    "the user says that there is no header": Case(
        text(TABLE.partition("\n")[2]), yaml="source.header=false", answers=answers(header=False)
    ),
    "Excel's separator": Case(text("sep=;\n" + lines(frame(), ";")), yaml="label.column=clicked split.by=time"),
    "a title": Case(text("Report of May\n" + TABLE), refused="its first line fills 1 of the 4 values"),
    "a padded title": Case(text("Report,,,\nby j,,,\n" + TABLE + "Total,,,\n"), refused="remove the lines above"),
    "a short header": Case(
        text("a,b,clicked\n" + "".join(f"{i},{i % 3},x,{i % 2}\n" for i in range(90))), yaml="label.column=clicked"
    ),
    "R's names of rows": Case(log("ts", extra=ints(9)), yaml="label.column=clicked"),
    "headings": Case(text(FILMS, "ratings.txt"), refused="lines such as 0: are parts of a row"),
    "records of several lines": Case(text(RECORDS), refused="write all values of a row on one line"),
    "slots": Case(text(SLOTS, "part-0"), refused="one JSON object a line"),
    "lengths before lists": Case(
        text("".join(f"{1 + i % 5} {' '.join(str(j + i) for j in range(1 + i % 5))}\n" for i in range(80))),
        refused="begins with the number",
    ),
    "lists without users": Case(text("i1 i2 i3\ni1 i4\ni3 i2 i9 i8\n" * 9), refused="do not begin with their user"),
    "prose": Case(text("To be, or not to be.\nThat is the question.\n"), refused="no separator divides"),
    "a matrix": Case(text(MATRIX), refused="type label="),
    # files that are something else
    "a workbook": Case(files(a__xlsx=b"PK\x03\x04[Content_Types].xml"), refused="Excel workbook"),
    "a pickle": Case(files(a__pkl=b"\x80\x04\x95rest"), refused="pickle"),
    "an array": Case(files(a__npy=b"\x93NUMPY\1\0"), refused="NumPy array"),
    "binary": Case(files(a__bin=bytes(range(256)) * 50), refused="neither text nor Parquet"),
    "svmlight": Case(text("2 qid:1 1:0.5\n0 qid:1 1:1.5\n" * 40), refused="format: svmlight"),
    "one object": Case(text(json.dumps({str(i): [i] for i in range(2000)}), "a.json"), refused="object of many keys"),
    "an object over lines": Case(text(json.dumps({"a": [{"b": 1}]}, indent=1), "a.json"), refused="jq -c"),
    "an array of arrays": Case(text("[[1, 2], [3, 4]]", "a.json"), refused="jq -c"),
    "a damaged file": Case(files(a__parquet=b"PAR1" + b"x" * 200), refused="not a Parquet file"),
    "a cut archive": Case(files(a__csv__gz=gzip.compress(TABLE.encode())[:60]), refused="damaged|cannot be read"),
    "gzip without its suffix": Case(files(a__csv=gzip.compress(TABLE.encode())), refused="rename it to .gz"),
    "carriage returns": Case(text(TABLE.replace("\n", "\r")), refused="carriage returns alone"),
    "Python dicts": Case(text("{'a': 1}\n{'a': 2}\n", "a.jsonl"), refused="Python dicts"),
    "JSON objects as text": Case(
        lambda f: pl.DataFrame(
            {"k": ["a"] * 200, "v": [json.dumps({"u": i, "a": i % 7}) for i in range(200)]}
        ).write_ndjson(f / "a.jsonl"),
        refused="no name says which column is the label",
    ),
    "a byte order mark alone": Case(files(a__csv=b"\xef\xbb\xbf"), refused="has no text"),
    # labels
    "German": Case(
        named("nutzer", "artikelnr", "zeitstempel", "geklickt", separator=";"),
        yaml="label.column=geklickt split.column=zeitstempel",
    ),
    "Chinese": Case(named("用户ID", "商品ID", "时间", "是否点击"), yaml="label.column=是否点击 split.column=时间"),
    "Portuguese": Case(named("cliente", "anúncio", "data_hora", "clicou", separator="\t"), yaml="label.column=clicou"),
    "gb18030": Case(
        named("用户", "商品", "时间", "点击", encoding="gb18030"), yaml="source.encoding=gb18030 label.column=点击"
    ),
    "cp949": Case(
        named("고객번호", "상품번호", "노출시각", "클릭여부", encoding="cp949"),
        yaml="source.encoding=cp949",
        asked="time",
    ),
    "names that are unknown in another encoding": Case(
        named("user_id", "item_id", "ts", "klik_čeština", encoding="cp1250"), "encoding label"
    ),
    "another outcome": Case(log(conversion=ints(2)), "leak", left_out="conversion"),
    "a label that nothing names": Case(log("ts", "clicked", zeta="clicked"), "label", "label.column=zeta"),
    "the same, answered": Case(log("ts", "clicked", zeta="clicked"), answers=answers(label="zeta")),
    "outcomes without a name": Case(
        log("clicked", watched_to_end=ints(2), skipped=ints(2)), "label", left_out="watched_to_end"
    ),
    "no label, as asked": Case(log("clicked", watched_to_end=ints(2)), yaml="group.by=user", answers=NO_LABEL),
    "numbers of kinds of events": Case(log("clicked", interaction_type=ints(5)), "label positive"),
    "kinds of events": Case(
        log("clicked", event_type=["view", "cart", "view", "purchase"] * (ROWS // 4)),
        "label",
        "label.positive=purchase",
    ),
    "several outcomes": Case(
        log("clicked", like=ints(2), follow=ints(2), share=ints(2)), "label", left_out="follow,share"
    ),
    "states": Case(log("clicked", Stage=["Closed Won", "Closed Lost", "Open", "Open"] * (ROWS // 4)), "label positive"),
    "states, answered": Case(
        log("clicked", Stage=["Won", "Lost", "Open", "Open"] * (ROWS // 4)),
        yaml="label.positive=Won",
        answers=answers(label="Stage", positive=("Won",)),
    ),
    "codes of answers": Case(log("clicked", respuesta=[(1, 2, 9)[i % 3] for i in range(ROWS)]), "positive"),
    "no rating": Case(log("clicked", rating=[0 if i % 3 else i % 5 + 1 for i in range(ROWS)]), "positive"),
    "99 is no rating": Case(log("clicked", rating=[99 if i % 3 else i % 5 + 1 for i in range(ROWS)]), "positive"),
    "yes to a refusal": Case(log("clicked", skipped=some(0.7, "Y", "N")), "label", "label.positive=N"),
    "not skipped": Case(
        log("clicked", not_skipped=some(0.7, "yes", "no")),
        yaml="label.positive=yes",
        answers=answers(label="not_skipped"),
    ),
    "yes in other languages": Case(log("clicked", zzz=some(0.8, "oui", "non")), "label", "label.positive=oui"),
    "spellings of yes": Case(
        log("clicked", bought=["true", "1", "0", "false"] * (ROWS // 4)), yaml="label.positive=1,true"
    ),
    "classes that are items": Case(
        log("clicked", prev=TAGS, next_item=[f"p{i % 90}" for i in range(ROWS)]),
        "positive",
        answers=answers(label="next_item"),
    ),
    "the column that the test file lacks": Case(
        files(
            train__csv=frame(zeta=RNG.normal(size=ROWS)).drop(CORE[0], CORE[3]), test__csv=frame().select("item", "ts")
        ),
        yaml="label.column=zeta label.kind=regression",
    ),
    "sales": Case(
        log("user", "clicked", Sales=RNG.lognormal(8, 1, ROWS).round(2)), yaml="label.column=Sales label.log=true"
    ),
    "a time is no label": Case(
        log("clicked", bought_at=some(0.3, TS)), refused="write a column that says", answers=answers(label="bought_at")
    ),
    "times spent": Case(log("clicked", dwell_time_ms=RNG.exponential(900, ROWS).round(1)), "label"),
    "a folder of a partition": Case(
        files(**{f"arm={a}___log__csv": clicks().select(size="price", town="city") for a in "ab"}),
        refused="no name says",
    ),
    # users, items, times
    "a user that is mostly missing": Case(
        log("user", user=some(0.02, "u1"), session="user"), yaml="sparse.session=present"
    ),
    "two users": Case(log("user", user_id=ints(5_000_070, 5_000_000), customer_id=ints(1_000_070, 1_000_000)), "user"),
    "one of two users": Case(
        log("user", user_id=ints(5_000_070, 5_000_000), customer_id=ints(1_000_070, 1_000_000)),
        answers=answers(user="customer_id"),
    ),
    "ratings of somebody": Case(
        log("user", "item", "clicked", who=ints(200), joke=ints(160), rating=RNG.uniform(-9, 9, ROWS).round(2)), "user"
    ),
    "no such column": Case(
        log(), refused="user=usser: no such column; did you mean user", answers=answers(user="usser")
    ),
    "no time": Case(
        log(city=["a", "b"] * (ROWS // 2)), refused="time=city: holds neither", answers=answers(time="city")
    ),
    "users and items that nothing names": Case(
        log("user", "item", "clicked", who="user", what="item"), refused="type user=who item=what", answers=NO_LABEL
    ),
    "days that are counted": Case(log("ts", day=pl.int_range(pl.len()) // 8), "time"),
    "days of Excel": Case(log("ts", date=[45_000.5 + i / 7 for i in range(ROWS)]), "time"),
    "Chinese times": Case(log(ts=[f"2024年03月{1 + i // 20:02}日 08:{i % 60:02}" for i in range(ROWS)]), "time"),
    "unix times without a name": Case(log("ts", evt="ts"), "time", "split.by=time"),
    "day or month first": Case(log("ts", date=[f"0{1 + i % 9}/0{1 + i % 7}/2024" for i in range(ROWS)]), "time"),
    "times of births": Case(
        log("ts", geburtsdatum=[f"{1950 + i % 50}-01-0{1 + i % 9}" for i in range(ROWS)]),
        yaml="split.by=random",
        left_out="geburtsdatum",
    ),
    "few missing times": Case(log(ts=some(0.95, TS)), yaml="where='ts IS NOT NULL' split.by=time"),
    "many missing times": Case(log(ts=some(0.7, TS)), "time"),
    "most times missing": Case(log(ts=some(0.3, TS)), "time", "split.by=random"),
    "missing times, answered": Case(log(ts=some(0.7, TS)), yaml="split.by=random", answers=answers(time=None)),
    "numbers of orders are no times": Case(
        log(Bestellnr=pl.int_range(pl.len()) // 3 + 2_026_000_001), yaml="split.column=ts"
    ),
    "interactions without a user": Case(
        log("clicked", user=some(0.8, pl.col("user"))), yaml="where='user IS NOT NULL'"
    ),
    "events without an item": Case(
        log(item=pl.when(CLICKED == 1).then("item").otherwise(some(0.8, pl.col("item")))),
        yaml="where='item IS NOT NULL'",
    ),
    # what is known only afterwards
    "a copy of the label": Case(log(x7=CLICKED * 2 + 1), left_out="x7"),
    "a value of positive rows": Case(log(x7=CLICKED * some(0.5, 1, 0)), left_out="x7"),
    "a value of a few positive rows": Case(log(x7=(CLICKED.cum_sum() <= 4).cast(int) * CLICKED), "leak", left_out="x7"),
    "a value that only a label has": Case(log(x7=pl.when(CLICKED == 1).then(TS % 97)), left_out="x7"),
    "a number that orders the rows": Case(
        log(x7=(CLICKED + pl.Series(RNG.normal(0, 0.3, ROWS))).round(3)), "leak", left_out="x7"
    ),
    "noise": Case(log(x7=ints(2), x8=RNG.normal(size=ROWS)), inputs="x7,x8"),
    "a time after the row": Case(log(finished_at=TS + 7000), left_out="finished_at"),
    "the end of a row": Case(
        log("ts", **{"Date de clôture": DAY + pl.duration(days=9), "Proposé le": DAY}), yaml="split.column='Proposé le'"
    ),
    "a prediction": Case(log(churn_probability=RNG.random(ROWS).round(4)), "leak", left_out="churn_probability"),
    "watched time": Case(log(watched_minutes=RNG.random(ROWS).round(2)), "leak", left_out="watched_minutes"),
    "the length of an item": Case(log(video_length=RNG.random(ROWS).round(2)), inputs="video_length"),
    "how long it took": Case(log(duration=ints(900)), "leak", left_out="duration"),
    "counts of outcomes": Case(log(n_clicks=ints(5)), "leak", left_out="n_clicks"),
    "a matter that is over": Case(log(refund_amount=ints(90)), "leak", left_out="refund_amount"),
    "parts of a review": Case(
        log("clicked", review_overall=[1 + i % 5 for i in range(ROWS)], review_taste=ints(6, 1)),
        "leak",
        left_out="review_taste",
    ),
    "yes and no of neither user nor item": Case(log(engraved=ints(2)), "leak", left_out="engraved"),
    "yes and no that are known before": Case(log(is_mobile=ints(2)), inputs="is_mobile"),
    "a property of the user": Case(log(member=pl.col("user").hash() % 2), inputs="member"),
    "what a test file has": Case(
        files(
            train__csv=frame(length_of_stay=ints(900), seen="ts"), test__csv=frame("clicked", length_of_stay=ints(900))
        ),
        inputs="length_of_stay",
        left_out="seen",
    ),
    "other outcomes of an object": Case(
        lambda f: (f / "a.jsonl").write_text(
            "\n".join(
                json.dumps({"user": u, "item": i, "ts": t, "outcome": {"clicked": y, "seen": k % 3}})
                for k, (u, i, t, y) in enumerate(frame().iter_rows())
            )
        ),
        "leak",
        "label.column=outcome.clicked",
        left_out="outcome.seen",
    ),
    "a weight": Case(log(sample_weight=RNG.random(ROWS).round(3)), "leak", left_out="sample_weight"),
    # columns
    "odd texts among numbers": Case(
        log(price=some(0.04, "unknown", TS.cast(str))), yaml="source.column_null_values.price=unknown"
    ),
    "many odd texts among numbers": Case(
        log(price=some(0.2, pl.format("x{}", pl.int_range(pl.len())), (TS / 7).round(2).cast(str))), "kind"
    ),
    "odd texts among times": Case(
        log("ts", at=some(0.2, pl.format("x{}", pl.int_range(pl.len()) % 50), pl.from_epoch("ts").cast(str))), "kind"
    ),
    "codes with letters": Case(
        log(stock=[f"{20_000 + i % 300}{'B' * (i % 9 == 0)}" for i in range(ROWS)]), inputs="stock"
    ),
    "one negative number": Case(log(visits=[-1 if i % 9 == 0 else i % 200 for i in range(ROWS)]), "kind"),
    "amounts with a sign": Case(
        log(separator=";", cost=[f"{100 + i % 77},{i % 100:02} €" for i in range(ROWS)]), left_out="cost"
    ),
    "amounts with spaces": Case(
        log(separator=";", cost=[f"{1 + i % 90} {i % 1000:03d},{i % 100:02d}" for i in range(ROWS)]), left_out="cost"
    ),
    "commas of thousands or decimals": Case(
        log(separator=";", cost=[f"{1 + i % 9},{100 + i % 900}" for i in range(ROWS)]), "decimal"
    ),
    "decimal commas": Case(
        log(separator=";", cost=[f"{i % 90},{i % 100:02}" for i in range(ROWS)]), yaml="source.decimal=,"
    ),
    "pairs of ids": Case(
        log(separator=";", tag=[f"{i * 7 % 29 + 10},{i * 5 % 29 + 10}" for i in range(ROWS)]),
        yaml="source.decimal=absent",
    ),
    "numbers of ranges": Case(log(age_range=ints(40, 1)), yaml="sparse.age_range=present"),
    "ids of numbers": Case(
        log("user", "item", CUSTOMER_SK=ints(7060, 7000), OFFER_SK=ints(40)),
        yaml="sparse.CUSTOMER_SK=present sparse.OFFER_SK=present",
    ),
    "an index of pandas": Case(log(**{"Unnamed: 0": pl.int_range(pl.len())}), left_out="Unnamed: 0"),
    "a history": Case(
        log(hist=[" ".join(f"i{j}" for j in RNG.integers(0, 40, 1 + i % 9)) for i in range(ROWS)]),
        yaml="sparse.hist.split=' ' sparse.hist.table=item",
    ),
    "durations": Case(lambda f: frame(ttl=pl.duration(seconds=TS % 9)).write_parquet(f / "a.parquet"), left_out="ttl"),
    "bytes": Case(
        lambda f: frame(code=[bytes([255, i % 256]) for i in range(ROWS)]).write_parquet(f / "a.parquet"),
        refused="bytes that are not UTF-8",
    ),
    # folders
    "two data sets": Case(files(books__csv=frame(), films__csv=frame()), "files files"),
    "parts of one": Case(
        files(clicks_jan__csv=frame()[:250], clicks_feb__csv=frame()[250:]), yaml="source.files=*.csv"
    ),
    "two logs": Case(files(views__csv=frame("clicked"), orders__csv=frame("clicked", amount=ints(9))), "files"),
    "two logs without a header": Case(
        files(
            ratings__txt=lines(clicks().select("user", "item", "price", "age", "ts"), header=False, null="0"),
            trust__txt=lines(frame().select("user", "item"), header=False),
        ),
        refused="may hold the rows",
    ),
    "a file that holds the rows of another": Case(files(a1__csv=frame(), a2__csv=frame()[:90]), "files"),
    "a sample of a submission": Case(
        files(train__csv=frame(), sample_submission__csv=frame(clicked=[0] * ROWS)), yaml="source.files=train.csv"
    ),
    "an empty file": Case(files(a__csv=frame(), b__csv=""), yaml="source.files=a.csv"),
    "a part without rows": Case(
        files(a1__csv=frame()[:200], a2__csv=frame().clear(), a3__csv=frame()[200:]), yaml="split.by=time"
    ),
    "kinds of JSON lines": Case(
        lambda f: (frame(stars=ints(6, 1)).write_ndjson(f / "review.json"), ITEMS.write_ndjson(f / "items.json")),
        yaml="source.files=review.json",
        asked="leak",
    ),
    "a larger file that cannot be read": Case(
        files(ratings__txt=FILMS, titles__csv="id,flag\n1,2\n"), refused="ratings.txt: lines such as"
    ),
    "few rows": Case(files(a__csv=frame()[:20]), "rows"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_case(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    if case.refused:
        with pytest.raises(UserError, match=case.refused) as e:
            propose([str(tmp_path)], Answers(**case.answers))
        assert "\n" not in str(e.value)
        return
    p = propose([str(tmp_path)], Answers(**case.answers))
    assert [q.key for q in p.questions] == case.asked.split(), p.questions
    config = OmegaConf.create(document(p, "mine"))
    for word in shlex.split(case.yaml):
        key, _, value = word.partition("=")
        assert shown(config, key) == value or (value == "present" and shown(config, key) != "absent"), key
    read = {str(f.settings.get("column", f.name)) for f in p.features.inputs}
    assert {*filter(None, case.inputs.split(","))} <= read and not {*case.left_out.split(",")} & read
