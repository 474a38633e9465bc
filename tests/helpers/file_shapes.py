"""Small files of many shapes: the same 400 clicks, as people store them."""

import bz2
import gzip
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from omegaconf import OmegaConf

ROWS = 400
START = datetime(2026, 1, 5, 6, 30)
NAMES = ["user", "item", "price", "age", "ts", "tags", "city", "clicked"]


def clicks(seed: int = 0, rows: int = ROWS) -> pl.DataFrame:
    """Clicks that depend on the price and the item, in the order of time."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 60, rows), rng.integers(0, 40, rows)
    price = np.round(rng.lognormal(2, 1, rows), 2)
    age = [None if rng.random() < 0.1 else int(a) for a in rng.integers(18, 90, rows)]
    logit = 1.2 * (item % 3) - 0.05 * price - 1
    tags = ["|".join(f"t{j}" for j in rng.choice(9, rng.integers(1, 4), replace=False)) for _ in range(rows)]
    return pl.DataFrame(
        {
            "user": [f"u{u}" for u in user],
            "item": [f"i{i}" for i in item],
            "price": price,
            "age": age,
            "ts": [int((START + timedelta(minutes=37 * i)).timestamp()) for i in range(rows)],
            "tags": tags,
            "city": [("Köln", "Paris", "New York")[i % 3] for i in rng.integers(0, 3, rows)],
            "clicked": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        },
        schema_overrides={"age": pl.Int64},
    )


def lines(frame: pl.DataFrame, separator: str = ",", *, header: bool = True, null: str = "", end: str = "\n") -> str:
    """Return a frame as text, without quotes."""
    rows = [frame.columns] if header else []
    rows += [[null if v is None else str(v) for v in row] for row in frame.iter_rows()]
    return end.join(separator.join(row) for row in rows) + end


def shown(config: Any, path: str) -> str:
    """Return the value of a key as the tables of this folder write it."""
    for part in path.split("."):
        config = None if config is None else config.get(part)
    if config is None:
        return "absent"
    values = list(config) if OmegaConf.is_list(config) else [config]
    texts = (str(v).lower() if isinstance(v, bool) else str(v).replace("\t", "\\t") for v in values)
    return ",".join(texts)


@dataclass
class Shape:
    """Files in a folder, and what recsys.new has to find.

    write: writes into the folder
    expected: words KEY=VALUE of the YAML, as the shell divides them, with commas between the values of a list
    asked: the keys of the questions that the files leave open
    refused: words of the error if the files have to be converted, or an answer is needed first
    """

    write: Callable[[Path], object]
    expected: str = ""
    asked: str = ""
    refused: str = ""
    files: str = "raw"
    answers: dict[str, Any] = field(default_factory=dict)
    model: str = "dlrm"


def _csv(name: str = "a.csv", **options: Any) -> Callable[[Path], object]:
    return lambda f: (f / name).write_text(lines(clicks(), **options))


def _packed(name: str, pack: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda f: (f / name).write_bytes(pack(lines(clicks()).encode()))


def _zip(f: Path) -> None:
    with zipfile.ZipFile(f / "a.csv.zip", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a.csv", lines(clicks()))


def _zstd(f: Path) -> None:
    with pa.CompressedOutputStream(str(f / "a.csv.zst"), "zstd") as out:
        out.write(lines(clicks()).encode())


def _hive(f: Path) -> None:
    for day in range(4):
        folder = f / f"day=2026-01-0{day + 1}"
        folder.mkdir()
        clicks(day, 120).drop("ts").write_parquet(folder / "part-0.parquet")


def _vectors(f: Path) -> None:
    frame = clicks().with_columns(pl.col("tags").str.split("|"))
    rng = np.random.default_rng(1)
    frame.with_columns(pl.Series("embedding", rng.normal(size=(ROWS, 4)).tolist())).write_parquet(f / "a.parquet")


def _jsonl(f: Path) -> None:
    rows = []
    for r in clicks().iter_rows(named=True):
        own = {"user": {"id": r["user"], "age": r["age"]}, "item": r["item"], "price": r["price"]}
        rows.append(json.dumps(own | {"tags": r["tags"].split("|"), "ts": r["ts"], "clicked": bool(r["clicked"])}))
    (f / "a.jsonl").write_text("\n".join(rows) + "\n")


def _libfm(f: Path) -> None:
    rows = [
        f"{r['clicked']} {int(r['user'][1:])}:1 {100 + int(r['item'][1:])}:1" for r in clicks().iter_rows(named=True)
    ]
    (f / "a.libfm").write_text("\n".join(rows) + "\n")


def sessions() -> list[dict[str, Any]]:
    """One object a session, as OTTO has them."""
    rng, start = np.random.default_rng(5), 1_659_304_800_000
    return [
        {
            "session": u,
            "events": [
                {"aid": 5000 + i, "ts": start + 10**6 * u + 60_000 * k, "type": ("clicks", "carts")[rng.integers(2)]}
                for k, i in enumerate(items)
            ],
        }
        for u, items in interactions()
    ]


def _events_of_sessions(f: Path) -> None:
    (f / "train.jsonl").write_text("\n".join(map(json.dumps, sessions())) + "\n")


def _parallel(f: Path) -> None:
    rows = [{"user": f"u{s['session']}", **{n: [e[n] for e in s["events"]] for n in ("aid", "ts")}} for s in sessions()]
    pl.DataFrame(rows).write_parquet(f / "a.parquet")


def _impressions(f: Path) -> None:
    """MIND's behaviors.tsv."""
    rng, rows = np.random.default_rng(6), []
    for i in range(1, 200):
        shown = rng.integers(0, 80, rng.integers(2, 6))
        marks = " ".join(f"N{n}-{int(k == i % len(shown))}" for k, n in enumerate(shown))
        history = " ".join(f"N{n}" for n in rng.integers(0, 80, rng.integers(1, 9)))
        when = (START + timedelta(minutes=61 * i)).strftime("%m/%d/%Y %I:%M:%S %p")
        rows.append(f"{i}\tU{rng.integers(0, 60)}\t{when}\t{history}\t{marks}")
    (f / "behaviors.tsv").write_text("\n".join(rows) + "\n")


def _broken(f: Path) -> None:
    rows = [
        f'{r["user"]},"so \\"{r["city"]}\\",\n\n{i}",{r["clicked"]}'
        for i, r in enumerate(clicks().iter_rows(named=True))
    ]
    (f / "a.csv").write_text("user,review,clicked\n" + "\n".join(rows) + "\n")


def _listens(f: Path) -> None:
    """last.fm-1K: sorted by user, so that few users are in a sample; some tracks have no id."""
    rng, rows = np.random.default_rng(8), []
    for u in range(1, 8):
        for k in range(120):
            i = int(rng.integers(0, 60))
            at = (START - timedelta(minutes=7 * k)).strftime("%Y-%m-%dT%H:%M:%SZ")
            track = "" if i % 20 == 0 else f"{i:08x}-5ca4"
            rows.append(f"user_{u:06d}\t{at}\t{i % 9:08x}-b6e8\tArtist {i % 9}\t{track}\tSong {i % 50}")
    (f / "listens.tsv").write_text("\n".join(rows) + "\n")


def interactions(users: int = 120, items: int = 60) -> list[tuple[int, list[int]]]:
    """Lists of items that follow each other."""
    rng = np.random.default_rng(3)
    return [
        (u, [int(x) for x in (rng.integers(items) + np.arange(rng.integers(4, 12))) % items])
        for u in range(1, users + 1)
    ]


def _lists(f: Path) -> None:
    (f / "a.txt").write_text("".join(f"{u} {' '.join(str(1000 + i) for i in items)}\n" for u, items in interactions()))


def _pairs(f: Path) -> None:
    (f / "a.txt").write_text("".join(f"{u} {i}\n" for u, items in interactions() for i in items))


def _log(f: Path) -> None:
    rows = [f"{u},{i},{1_700_000_000 + 977 * n}" for u, items in interactions() for n, i in enumerate(items)]
    (f / "a.csv").write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    (f / "items.csv").write_text("item_id,brand,price\n" + "".join(f"{i},b{i % 5},{i * 1.7:.2f}\n" for i in range(60)))


def _ratings(f: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"{u}::{i}::{rng.integers(1, 6)}::{978_300_000 + int(rng.integers(1_000_000))}"
        for u, items in interactions()
        for i in items
    ]
    (f / "ratings.dat").write_text("\n".join(rows) + "\n")


def _events(f: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.choice(["view", "addtocart", "transaction"], ROWS, p=[0.7, 0.2, 0.1])
    frame = clicks().select("ts", "user", pl.Series("event", kinds), "item", "price")
    (f / "events.csv").write_text(lines(frame.rename({"user": "visitorid", "item": "itemid", "ts": "timestamp"})))


def _splits(f: Path) -> None:
    for i, name in enumerate(("train", "valid", "test")):
        (f / f"{name}.csv").write_text(lines(clicks(i)))


def _unlabelled(f: Path) -> None:
    (f / "train.csv").write_text(lines(clicks(0)))
    (f / "test.csv").write_text(lines(clicks(1).drop("clicked")))


def _german(f: Path) -> None:
    frame = clicks().with_columns(pl.col("price").cast(pl.String).str.replace(".", ",", literal=True))
    (f / "a.csv").write_bytes(lines(frame, ";").encode("latin-1"))


def _thousands(f: Path) -> None:
    frame = clicks().with_columns(
        pl.format('"{}"', (pl.col("price") * 1000).map_elements(lambda x: f"{x:,.2f}", pl.String)).alias("price")
    )
    (f / "a.csv").write_text(lines(frame))


def _nulls(f: Path) -> None:
    frame = clicks().with_columns(
        pl.when(pl.col("item") == "i3").then(pl.lit("?")).otherwise("city").alias("city"),
        pl.when(pl.int_range(pl.len()) % 9 == 0).then(-999).otherwise(pl.col("ts") % 1000).alias("score_"),
    )
    (f / "a.csv").write_text(lines(frame, null="NA"))


def _times(form: str) -> Callable[[Path], object]:
    def write(f: Path) -> None:
        moments = pl.col("ts").map_elements(lambda t: datetime.fromtimestamp(t).strftime(form), pl.String)
        (f / "a.csv").write_text(lines(clicks().with_columns(moments.alias("ts")).rename({"ts": "event_time"})))

    return write


def _digits(f: Path) -> None:
    hours = pl.from_epoch("ts").dt.strftime("%y%m%d%H").cast(pl.Int64).alias("hour")
    clicks().with_columns(hours).drop("ts").write_parquet(f / "a.parquet")


def _names(f: Path) -> None:
    odd = {
        "user": "user.id",
        "price": "price/EUR",
        "age": "age [years]",
        "clicked": "Is Click",
        "city": "where*",
        "ts": "event time",
    }
    (f / "a.csv").write_text(lines(clicks().rename(odd)))


def _leak(f: Path) -> None:
    paid = pl.when(pl.col("clicked") == 1).then(pl.col("price") * 1.2).otherwise(0.0).alias("amount_paid")
    (f / "a.csv").write_text(lines(clicks().with_columns(paid)))


def _text_label(f: Path) -> None:
    frame = clicks().with_columns(
        pl.when(pl.col("clicked") == 1).then(pl.lit("50000+.")).otherwise(pl.lit("- 50000.")).alias("income")
    )
    (f / "a.data").write_text(lines(frame.drop("clicked", "tags"), ", ", header=False))


def _labels(values: tuple[Any, Any]) -> Callable[[Path], object]:
    def write(f: Path) -> None:
        chosen = [values[c] for c in clicks()["clicked"]]
        (f / "a.csv").write_text(lines(clicks().with_columns(pl.Series("target", chosen)).drop("clicked")))

    return write


def _missing_labels(f: Path) -> None:
    kept = pl.when(pl.int_range(pl.len()) % 7 != 0).then("clicked").alias("clicked")
    (f / "a.csv").write_text(lines(clicks().with_columns(kept)))


def _many(f: Path) -> None:
    rng = np.random.default_rng(0)
    frame = clicks().select("clicked", *(pl.Series(f"x{i}", rng.normal(size=ROWS)) for i in range(160)), "user")
    frame.write_parquet(f / "a.parquet")


def _folder(f: Path) -> None:
    (f / "log.csv").write_text(lines(clicks().select("user", "item", "ts", "clicked")))
    (f / "users.csv").write_text(lines(clicks().select("user", "city", "age").unique("user", maintain_order=True), ";"))
    (f / "README.md").write_text("# Clicks\n\nA log of clicks, with a table of users.\n")


def _more_columns(f: Path) -> None:
    """A log whose later files have a column more."""
    for part in range(3):
        frame = clicks(part, 120)
        (f / f"2026-0{part + 1}.csv").write_text(lines(frame if part else frame.drop("city")))


def _hourly(f: Path) -> None:
    """More files than the sample reads; their hours have a period of 24 files."""
    for n in range(80):
        folder = f / f"day=2026-01-{n // 8 + 1:02d}" / f"hour={n % 8}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text(lines(clicks(n, 8).drop("ts")))


def _large_side(f: Path) -> None:
    """The table of items has more bytes than the log."""
    (f / "log.csv").write_text(lines(clicks().select("user", "item", "ts", "clicked")))
    items = "".join(f"i{i},{'a b c d e f g h ' * 30}{i},{i % 3}\n" for i in range(40))
    (f / "items.csv").write_text("item,about,kind\n" + items)


def _two_logs(f: Path) -> None:
    (f / "clicks.csv").write_text(lines(clicks().select("user", "item", "ts", "clicked")))
    (f / "orders.csv").write_text(
        lines(clicks(1, 200).select("ts", "user", "item", pl.col("clicked").alias("returned")))
    )


def _rated(f: Path) -> None:
    """Ratings, of which -1 means none, of shows with times that have an offset and genres such as "a, b"."""
    rows, genres = [], ("Comedy, Drama", "Drama, Sci-Fi", "Comedy", "Sci-Fi, Comedy, Drama")
    for i, r in enumerate(clicks().iter_rows(named=True)):
        at = (START + timedelta(minutes=37 * i)).strftime("%a %b %d %H:%M:%S -0700 %Y")
        rows.append(f'{r["user"]},{r["item"]},{-1 if i % 5 == 0 else i % 9 + 2},{at},"{genres[i % 4]}"')
    (f / "a.csv").write_text("user_id,anime_id,rating,added,genre\n" + "\n".join(rows) + "\n")


def _unlisted(f: Path) -> None:
    """A label whose name is not known, in several spellings, beside a property of the user."""
    answers = [("1", "true", "0", "false")[2 * (1 - c) + i % 2] for i, c in enumerate(clicks()["clicked"])]
    member = pl.col("user").str.slice(1).cast(pl.Int64) % 2
    frame = clicks().select("user", "item", "ts", member.alias("member"), pl.Series("skipped", answers))
    (f / "a.csv").write_text(lines(frame))


def _members(f: Path) -> None:
    """A table of users with the end of their membership."""
    (f / "log.csv").write_text(lines(clicks().select("user", "item", "clicked")))
    ends = "".join(f"u{u},{(START + timedelta(days=3 * u)).date()},{u % 3}\n" for u in range(60))
    (f / "members.csv").write_text("user,valid_date,kind\n" + ends)


def _orders(f: Path) -> None:
    """Products of orders, with a price in euros, and histories of item numbers."""
    number = pl.col("item").str.slice(1).cast(pl.Int64) + 40 * (pl.int_range(pl.len()) % 2)
    paid = pl.format("{} €", pl.col("price").cast(pl.String).str.replace(".", ",", literal=True))
    frame = clicks().select(
        pl.format("order-{}", pl.int_range(pl.len()) // 4).alias("order_id"),
        pl.format("{}", "user").alias("user_id"),
        number.alias("item_id"),
        *(number.shift(k, fill_value=0).alias(f"hist_{k}") for k in (1, 2, 3)),
        paid.alias("paid"),
        "clicked",
    )
    (f / "a.csv").write_text(lines(frame, ";"))


def _index(f: Path) -> None:
    (f / "a.csv").write_text(lines(clicks().with_row_index("")))


def _quoted(f: Path) -> None:
    quoted = pl.format('"{}"', pl.col("city") + ", " + pl.col("user")).alias("where")
    (f / "a.csv").write_text(lines(clicks().with_columns(quoted)))


CLICKS = "label.column=clicked split.by=time sparse.tags.split='|'"
SASREC: dict[str, Any] = {"model": "sasrec"}
SHAPES: dict[str, Shape] = {
    "csv": Shape(_csv(), f"{CLICKS} label.at_least=absent split.column=ts"),
    "glob": Shape(_csv(), f"{CLICKS} source.files=*.csv root=raw", files="raw/*.csv"),
    "one file": Shape(_csv(), f"{CLICKS} source.files=a.csv", files="raw/a.csv"),
    "classes": Shape(_csv(), "label.column=city label.kind=classes", asked="leak", answers={"label": "city"}),
    "number": Shape(_csv(), "label.kind=regression label.log=true", asked="leak", answers={"label": "price"}),
    "tsv without header": Shape(
        _csv("a.tsv", separator="\t", header=False), r"source.header=false source.separator=\\t"
    ),
    "gz": Shape(_packed("a.csv.gz", gzip.compress), CLICKS),
    "bz2": Shape(_packed("a.csv.bz2", bz2.compress), CLICKS),
    "zip": Shape(_zip, CLICKS),
    "zst": Shape(_zstd, CLICKS),
    "german": Shape(_german, f"{CLICKS} source.decimal=',' source.separator=';' source.encoding=cp1252"),
    "thousands": Shape(_thousands, f"{CLICKS} source.thousands=','"),
    "two colons": Shape(_csv(separator="::"), f"{CLICKS} source.separator='::'"),
    "padded": Shape(_text_label, "source.strip=true label.positive=50000+. source.header=false", "label"),
    "runs of spaces": Shape(
        lambda f: (f / "a.txt").write_text(lines(clicks().drop("city"), "   ", null="NA")),
        rf"{CLICKS} source.separator='\s+'",
    ),
    "crlf": Shape(lambda f: (f / "a.csv").write_bytes(b"\xef\xbb\xbf" + lines(clicks(), end="\r\n").encode()), CLICKS),
    "utf-16": Shape(
        lambda f: (f / "a.csv").write_bytes(lines(clicks()).encode("utf-16")), f"{CLICKS} source.encoding=utf-16"
    ),
    "comments": Shape(
        lambda f: (f / "a.csv").write_text("# clicks of a shop\n# 400 rows\n" + lines(clicks())),
        f"{CLICKS} source.comment=#",
    ),
    "trailing separators": Shape(lambda f: (f / "a.csv").write_text(lines(clicks(), end=",\n")), CLICKS),
    "two headers": Shape(lambda f: (f / "a.csv").write_text(lines(clicks(0)) + lines(clicks(1))), CLICKS),
    "line breaks": Shape(
        _broken, r"source.escape='\' source.line_breaks_in_quotes=true label.column=clicked", model="dcnv2"
    ),
    "a column more": Shape(_more_columns, asked="files"),
    "hourly": Shape(_hourly, "split.by=time split.column=day sparse.hour=present"),
    "side tables": Shape(_folder, "label.column=clicked source.files=log.csv source.joins=absent"),
    "large side table": Shape(_large_side, "source.files=log.csv label.column=clicked"),
    "one of two tables": Shape(
        _two_logs, "source.files=orders.csv label.column=returned", answers={"label": "returned"}
    ),
    "two logs": Shape(_two_logs, asked="files"),
    "ratings of -1": Shape(_rated, "split.column=added_time sparse.genre.split=','", "kind"),
    "unlisted label": Shape(_unlisted, "label.column=skipped label.positive=1,true split.by=time", "label"),
    "times of users": Shape(_members, "split.by=random"),
    "orders": Shape(
        _orders,
        "split.by=hash split.column=order_id sparse.order_id=absent sparse.hist_1=present dense.paid=absent",
        "group",
    ),
    "index": Shape(_index, CLICKS),
    "quoted": Shape(_quoted, CLICKS),
    "nulls": Shape(_nulls, f"{CLICKS} source.null_values=NA,?", "kind leak"),
    "iso times": Shape(_times("%Y-%m-%d %H:%M:%S"), "split.column=event_time dense.event_time.cyclic=present"),
    "day first": Shape(_times("%d/%m/%Y %H:%M"), "split.by=time split.column=event_time_time"),
    "yymmddhh": Shape(_times("%y%m%d%H"), "split.by=time split.column=event_time_time"),
    "yyyymmdd": Shape(_times("%Y%m%d"), "split.column=event_time dense.event_time.cyclic=day_of_week"),
    "odd names": Shape(_names, "label.column='Is Click' split.column='event time' sparse.where.column='where*'"),
    "leak": Shape(_leak, f"{CLICKS} dense.amount_paid=absent"),
    "labels 1 and 2": Shape(_labels((1, 2)), "label.at_least=2"),
    "labels -1 and 1": Shape(_labels((-1, 1)), "label.at_least=1"),
    "labels no and yes": Shape(_labels(("no", "yes")), "label.positive=yes"),
    "labels False and True": Shape(_labels((False, True)), "label.column=target"),
    "missing labels": Shape(_missing_labels, f"{CLICKS} where='clicked IS NOT NULL'"),
    "parquet": Shape(lambda f: clicks().write_parquet(f / "a.parquet"), f"{CLICKS} source.format=parquet"),
    "parquet with times": Shape(
        lambda f: (
            clicks()
            .with_columns(pl.from_epoch("ts"), pl.col("city").cast(pl.Categorical))
            .write_parquet(f / "a.parquet")
        ),
        f"{CLICKS} split.column=ts",
    ),
    "parquet with digits": Shape(_digits, "split.column=hour_time dense.hour.column=hour_time"),
    "hive": Shape(_hive, "source.files=**/*.parquet split.by=time split.column=day"),
    "vectors": Shape(_vectors, "label.column=clicked sparse.tags.pooling=mean dense.embedding=present"),
    "jsonl": Shape(_jsonl, "source.format=jsonl label.column=clicked sparse.user_id.column=user.id"),
    "arrow": Shape(lambda f: clicks().write_ipc(f / "a.arrow"), f"{CLICKS} source.format=arrow"),
    "libfm": Shape(_libfm, "source.format=libfm label.column=label"),
    "ratings": Shape(_ratings, "label.column=rating label.at_least=4 split.by=time source.separator='::'"),
    "events": Shape(_events, "label.column=event label.positive=transaction", "label"),
    "three splits": Shape(_splits, "split.by=files split.validation_files=valid.csv label.column=clicked"),
    "test without labels": Shape(_unlabelled, f"{CLICKS} source.files=train.csv"),
    "only numbers": Shape(
        lambda f: (f / "a.csv").write_text(lines(clicks().select("price", "clicked"))), "label.column=clicked"
    ),
    "only categories": Shape(
        lambda f: (f / "a.csv").write_text(lines(clicks().select("user", "city", "clicked"))), "split.by=random"
    ),
    "many columns": Shape(_many, "label.column=clicked"),
    "user and items": Shape(_lists, "source.format=lists group.by=user split.by=leave_one_out", **SASREC),
    "pairs": Shape(_pairs, "group.by=user source.separator=' '", **SASREC),
    "log of items": Shape(_log, "group.by=user_id group.order=timestamp", **SASREC),
    "ratings without label": Shape(_ratings, "group.by=user group.order=timestamp", answers={"label": None}, **SASREC),
    "listens": Shape(
        _listens,
        "group.by=column_1 group.order=column_2 where='column_5 IS NOT NULL'",
        answers={"label": None, "user": "column_1", "item": "column_5"},
        **SASREC,
    ),
    "listens without answers": Shape(_listens, refused="label=null with user=column"),
    "sessions of events": Shape(_events_of_sessions, refused="if each element of events.aid is a row"),
    "array of objects": Shape(
        lambda f: (f / "a.json").write_text(json.dumps(sessions())), refused="if each element of events.aid is a row"
    ),
    "parallel lists": Shape(_parallel, refused="if each element of aid is a row"),
    "impressions": Shape(_impressions, refused="no name says which column is the label"),
}
