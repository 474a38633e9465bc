"""recsys.new is sure, or it asks: families of files in other names, separators and languages."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from file_shapes import clicks, lines
from small_csv import Commands

from recsys.base.errors import NeedsAnswer, UserError
from recsys.data.raw.derive import filter_rows
from recsys.new.known_names import NAMES, names_an_id_of
from recsys.new.label import BinaryGuess, NumberGuess
from recsys.new.leaks import AFTERWARDS
from recsys.new.proposal import Proposal
from recsys.new.propose import propose
from recsys.new.questions import MARK, Answers
from recsys.new.value_marks import separator_of_values
from recsys.new.write_config import document

LABEL = "clicked"


def proposed(folder: Path, **answers: Any) -> Proposal:
    return propose([str(folder)], Answers(**answers))


def asked(folder: Path, **answers: Any) -> list[str]:
    return [q.text for q in proposed(folder, **answers).questions]


def inputs(p: Proposal) -> set[str]:
    return {str(f.settings.get("column", f.name)) for f in p.features.inputs}


def write(file: Path, frame: pl.DataFrame, separator: str = ",", **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines(frame, separator, **options))


def named(*names: str) -> pl.DataFrame:
    """Return the clicks of users and items under other names: user, item, time, label."""
    frame = clicks().select("user", "item", "ts", LABEL)
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


# --- splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("entrenamiento.csv", "prueba.csv"), ("treino/a.csv", "teste/a.csv"), ("Training/x.csv", "Holdout/x.csv"),
        ("训练集.csv", "测试集.csv"), ("train/log.csv", "test/train_log.csv"), ("set_train/a.csv", "set_dev/a.csv"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("label", [True, False])
def test_files_that_come_with_their_split(tmp_path: Path, train: str, test: str, label: bool) -> None:
    frame = clicks().select("user", "item", "ts", *([LABEL] if label else []))
    write(tmp_path / train, frame)
    write(tmp_path / test, frame.reverse())
    p = proposed(tmp_path)
    assert (p.label is not None) == label and not p.questions
    assert p.split.settings["train_files"] == [train] and p.split.settings["test_files"] == [test]


def test_lists_that_come_with_their_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("train.txt", "test.txt"):
        rows = [" ".join(map(str, [u, *rng.choice(90, rng.integers(3, 9), replace=False)])) for u in range(80)]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    p = proposed(tmp_path)
    assert p.retrieves and p.split.settings["by"] == "files" and p.split.settings["test_files"] == ["test.txt"]
    interactions = sum(len(line.split()) - 1 for n in ("train", "test") for line in (tmp_path / f"{n}.txt").open())
    assert p.rows == pytest.approx(interactions, rel=0.05)


def test_words_that_hold_the_name_of_a_split(tmp_path: Path) -> None:
    for name in ("latest.csv", "contest.csv"):
        write(tmp_path / name, clicks())
    assert proposed(tmp_path).split.settings["by"] == "time"


# --- headers ----------------------------------------------------------------------------------------------


def test_a_header_of_names_and_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        [f"k{rng.integers(40)}", f"p{rng.integers(30)}", *rng.integers(0, 9, 3), rng.integers(2)] for _ in range(300)
    ]
    text = "\n".join(",".join(map(str, r)) for r in [["kunde", "produkt", 101, 121, 7.5, "gekauft"], *rows])
    (tmp_path / "a.csv").write_text(text + "\n")
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == "gekauft" and "header" not in p.source
    assert (p.roles.user.name, p.roles.item.name) == ("kunde", "produkt")  # type: ignore[union-attr]


def test_a_header_in_one_of_two_files(tmp_path: Path) -> None:
    write(tmp_path / "part-0.csv", clicks())
    write(tmp_path / "part-1.csv", clicks(1), header=False)
    with pytest.raises(UserError, match=r"part-1.csv: has no header, and .*part-0.csv has one \(user,item,.*write the"):
        proposed(tmp_path)


def test_the_same_first_line_is_a_header(tmp_path: Path) -> None:
    """Whatever stands below it: in one of the files only text."""
    write(tmp_path / "train.csv", clicks().select("user", "item", "city"))
    write(
        tmp_path / "test.csv", pl.DataFrame({"user": ["user7", "user8"], "item": ["item1"] * 2, "city": ["city"] * 2})
    )
    assert proposed(tmp_path).split.settings["by"] == "files"


def test_the_user_says_whether_there_is_a_header(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", clicks(), header=False)
    assert proposed(tmp_path).source["header"] is False
    assert "header" not in proposed(tmp_path, header=True).source


# --- labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "item", "time", "label"),
    [
        ("nutzer", "artikelnr", "zeitstempel", "geklickt"), ("usuario", "código_producto", "fecha", "compra"),
        ("用户ID", "商品ID", "时间", "是否点击"), ("cliente", "anúncio", "data_hora", "clicou"), ("uid", "vid", "ts", "is_clk"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_names_in_other_languages(tmp_path: Path, user: str, item: str, time: str, label: str, separator: str) -> None:
    write(tmp_path / "log.csv", named(user, item, time, label), separator)
    p = proposed(tmp_path)
    assert p.label is not None and not p.questions
    found = [p.roles.user, p.roles.item, p.roles.time, p.label.column]
    assert [c and c.name for c in found] == [user, item, time, label]


def test_chinese_letters_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(lines(named("用户", "商品", "时间", "点击")).encode("gb18030"))
    p = proposed(tmp_path)
    assert p.source["encoding"] == "gb18030" and p.label is not None and p.label.column.name == "点击"


def test_accents_are_not_chinese(tmp_path: Path) -> None:
    frame = clicks().with_columns(city=pl.Series(["Größe", "Façade", "Señor", "Été"] * 100))
    (tmp_path / "log.csv").write_bytes(lines(frame).encode("cp1252"))
    assert proposed(tmp_path).source["encoding"] == "cp1252"


@pytest.mark.parametrize("outcome", ["conversion", "purchase", "is_like", "购买", "gekauft"])
def test_another_outcome_is_no_input(tmp_path: Path, outcome: str) -> None:
    """By its name: what it says is independent of the label here."""
    frame = clicks().with_columns(pl.Series(outcome, np.random.default_rng(1).integers(0, 2, 400)))
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == LABEL and outcome not in inputs(p)
    assert "price" in inputs(p)


@pytest.mark.parametrize("rows", [3, 25])
def test_a_value_that_only_positive_rows_have(tmp_path: Path, rows: int) -> None:
    """Few of them are asked about, many are sure."""
    frame = clicks().with_columns(clicked=(pl.int_range(400) % 8 == 0).cast(pl.Int64))
    frame = frame.with_columns(x7=(pl.col("clicked").cum_sum() <= rows).cast(pl.Int64) * pl.col("clicked"))
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert "x7" not in inputs(p) and len(p.questions) == (rows == 3)


def test_labels_in_another_file(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", clicks().drop(LABEL))
    write(tmp_path / "y.csv", clicks().select(LABEL))
    with pytest.raises(UserError, match=r"y.csv: holds the label clicked of the rows in .*x.csv; its lines belong to"):
        proposed(tmp_path)
    keyed = clicks().with_row_index("row_id")
    write(tmp_path / "x.csv", keyed.drop(LABEL))
    write(tmp_path / "y.csv", keyed.select("row_id", LABEL))
    with pytest.raises(UserError, match="join it on row_id"):
        proposed(tmp_path)


def test_a_property_of_users_is_no_label_of_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().select("user", "item", "ts"))
    write(tmp_path / "users.csv", pl.DataFrame({"user": [f"u{i}" for i in range(60)], "income": ["low", "high"] * 30}))
    assert proposed(tmp_path).retrieves


def test_a_label_that_nothing_names(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().rename({LABEL: "zeta", "user": "who", "item": "what"}))
    p = proposed(tmp_path)
    [question] = p.questions
    assert question.text.startswith("is zeta the label?") and "label=zeta" in question.answers
    assert not asked(tmp_path, label="zeta")


def test_a_time_after_the_row(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().with_columns(finished_at=pl.col("ts") + 7000))
    assert "finished_at" not in inputs(proposed(tmp_path))


# --- users, items, times ----------------------------------------------------------------------------------


def test_a_user_that_is_mostly_missing(tmp_path: Path) -> None:
    frame = clicks().with_columns(session=pl.col("user"), user=pl.when(pl.int_range(400) < 8).then(pl.col("user")))
    write(tmp_path / "log.csv", frame)
    assert proposed(tmp_path).roles.user.name == "session"  # type: ignore[union-attr]


def test_two_users(tmp_path: Path) -> None:
    frame = clicks().with_columns(customer_id=pl.Series(np.random.default_rng(1).integers(10**6, 10**6 + 70, 400)))
    frame = frame.with_columns(user_id=pl.col("user").str.slice(1).cast(pl.Int64) + 5_000_000).drop("user")
    write(tmp_path / "log.csv", frame)
    [text] = asked(tmp_path)
    assert text.startswith("which column is the user: ") and {"customer_id", "user_id"} <= set(
        text.replace("?", ",").split(", ")[:1] + text.split(": ")[1].rstrip("?").split(", ")
    )
    p = proposed(tmp_path, user="customer_id")
    assert p.roles.user.name == "customer_id" and not p.questions  # type: ignore[union-attr]


def test_an_item_of_one_row_each(tmp_path: Path) -> None:
    frame = clicks().with_columns(post_id=pl.int_range(400) + 70_000).drop("item")
    write(tmp_path / "log.csv", frame)
    assert proposed(tmp_path).roles.item.name == "post_id"  # type: ignore[union-attr]


def test_days_that_are_counted(tmp_path: Path) -> None:
    frame = clicks().with_columns(day=pl.int_range(400) // 8).drop("ts")
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert p.roles.time is not None and p.split.settings["by"] == "time" and p.split.settings["column"] == "day"


def test_a_name_that_is_no_column(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks())
    for key in ("user", "item", "time"):
        with pytest.raises(UserError, match=f"^{key}=citty: no such column; did you mean city"):
            proposed(tmp_path, **{key: "citty"})
    with pytest.raises(UserError, match=r"^time=city: holds neither times nor numbers"):
        proposed(tmp_path, time="city")


def test_users_and_items_that_nothing_names(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().select(who="user", what="item", price="price"))
    with pytest.raises(UserError, match="no two columns are a user and an item; type user=who item=what"):
        proposed(tmp_path, label=None)
    p = proposed(tmp_path, label=None, user="who", item="what")
    assert p.retrieves and p.group == {"by": "who"}


# --- histories, slots -------------------------------------------------------------------------------------


def histories(rows: int = 300) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 12, 100)
    past = [rng.integers(0, 100, rng.integers(1, 6)) for _ in range(rows)]
    item = rng.integers(0, 100, rows)
    return pl.DataFrame(
        {
            "hist": ["|".join(map(str, p)) for p in past],
            "cates": ["|".join(map(str, kinds[p])) for p in past],
            "item": item,
            "cate": kinds[item],
            "label": [int(kinds[i] in kinds[p]) for i, p in zip(item, past, strict=True)],
        }
    )


@pytest.mark.parametrize(
    "names", [["hist", "cates", "item", "cate", "label"], ["历史", "历史类", "物品", "类目", "点击"], None]
)
def test_a_history_in_a_row_stays_one(tmp_path: Path, names: list[str] | None) -> None:
    frame = histories()
    if names is not None:
        frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    write(tmp_path / "log.csv", frame, ";", header=names is not None)
    p = proposed(tmp_path)
    columns = names or [f"column_{i}" for i in range(1, 6)]
    assert "explode" not in p.source and p.label is not None and p.label.column.name == columns[4]
    features = {f.settings.get("column", f.name): f.settings for f in p.features.sparse}
    assert features[columns[0]]["split"] == "|" and features[columns[0]]["table"] == columns[2]
    assert features[columns[1]]["table"] == columns[3]


@pytest.mark.parametrize("separator", [" ", ",", ";"])
@pytest.mark.parametrize("leading", [0, 1])
def test_slots(tmp_path: Path, separator: str, leading: int) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        past, y = rng.integers(0, 50, rng.integers(1, 5)), rng.integers(0, 2)
        fields = [str(y)] if leading else [f"click:{y}"]
        fields += [f"101:{rng.integers(60)}", *(f"205:{h}" for h in past), f"206:{rng.integers(50)}"]
        fields += [f"dense:{x:.3f}" for x in rng.random(3)]
        rows.append(separator.join(fields))
    (tmp_path / "part-0").write_text("\n".join(rows) + "\n")
    p = proposed(tmp_path)
    assert p.source["format"] == "slots" and not p.questions
    assert p.label is not None and p.label.column.name == ("label" if leading else "click")
    features = {f.name: f.settings for f in p.features.sparse}
    assert features["f205"]["split"] == separator and features["f205"]["pooling"] == "mean"
    if separator == " ":
        assert {"dense_1", "dense_2", "dense_3"} <= {f.name for f in p.features.dense}


# --- folders of several things ----------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("books.csv", "films.csv"), ("domain_a/log.csv", "domain_b/log.csv")])
def test_several_data_sets(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name, clicks())
    [text] = asked(tmp_path)
    assert text.endswith("have the same columns and different names: are they one data set?")
    assert not propose([str(tmp_path / names[0])]).questions
    assert not propose([str(tmp_path / name) for name in names]).questions


@pytest.mark.parametrize(
    "names",
    [("part-a.csv", "part-b.csv"), ("log_2026-01.csv", "log_2026-02.csv"), ("clicks_jan.csv", "clicks_feb.csv")],
)
def test_parts_of_one_data_set(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name, clicks())
    assert not asked(tmp_path)


def test_two_logs(tmp_path: Path) -> None:
    write(tmp_path / "views.csv", clicks().select("user", "item", "ts"))
    write(tmp_path / "orders.csv", clicks().select("user", "item", "price", "city", "age"))
    [text] = asked(tmp_path)
    assert "views.csv" in text and "orders.csv" in text and text.endswith("which one holds the rows?")


def test_json_lines_of_several_kinds(tmp_path: Path) -> None:
    for name, frame in (
        ("reviews.json", clicks()),
        (
            "items.json",
            pl.DataFrame({"item": [f"i{i}" for i in range(40)], "brand": ["a", "b"] * 20, "stars": [1.5] * 40}),
        ),
    ):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in frame.to_dicts()))
    p = proposed(tmp_path)
    assert p.source["files"] == ["reviews.json"] and "optional_columns" not in p.source


# --- files that are something else ------------------------------------------------------------------------


def workbook(file: Path) -> None:
    import zipfile

    with zipfile.ZipFile(file, "w") as z:
        z.writestr("[Content_Types].xml", "<x/>")
        z.writestr("xl/workbook.xml", "<x/>")


def pickled(file: Path) -> None:
    import pickle

    file.write_bytes(pickle.dumps([1, 2, 3]))


def tf_record(file: Path) -> None:
    file.write_bytes((40).to_bytes(8, "little") + b"crc1" + b"\n" + b"x" * 43)


def records(file: Path) -> None:
    file.write_text("\n".join(f"beer/name: b{i}\nreview/score: {i % 5}\nreview/user: u{i}\n" for i in range(20)))


@pytest.mark.parametrize(
    ("write_file", "message"),
    [
        (workbook, "is an Excel workbook; save its sheet as CSV"),
        (pickled, "is a pickle, which runs code when it is read"),
        (tf_record, "holds TFRecords; write them as Parquet"),
        (records, r"records of several lines, each `name: value` \(beer/name"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, write_file: Callable[[Path], None], message: str) -> None:
    write_file(tmp_path / "data.bin")
    with pytest.raises(UserError, match=message):
        proposed(tmp_path)


def test_a_log_that_cannot_be_read_is_not_replaced_by_a_smaller_file(tmp_path: Path) -> None:
    (tmp_path / "ratings.txt").write_text(
        "".join(f"{m}:\n" + "".join(f"{u},{u % 5}\n" for u in range(50)) for m in range(40))
    )
    write(tmp_path / "titles.csv", pl.DataFrame({"id": range(40), "year": range(1960, 2000), "flag": [0, 1] * 20}))
    with pytest.raises(UserError, match=r"ratings.txt: lines such as 0: hold a value of all lines below"):
        proposed(tmp_path)


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_asks_and_takes_answers(run: Commands, tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().rename({LABEL: "zeta", "user": "who", "item": "what"}))
    path = tmp_path / "conf" / "data" / "mine.yaml"
    status, said = run.said("data=mine", "files=log.csv")
    flat = " ".join(said.split())
    assert status == 3 and "question: is zeta the label?" in flat and "answer by label=zeta" in flat
    assert path.read_text().startswith(f"{MARK}: is zeta the label?")
    assert run.said("data=mine", "files=log.csv", "label=zeta")[0] == 0
    assert not path.read_text().startswith(MARK) and path.with_suffix(".draft").is_file()
    status, said = run.said("data=other", "files=log.csv", "yes=true")
    assert status == 0 and "guessed: is zeta the label?" in said
    assert run("model=mine", "user=x")[1] == ["user=x: applies only to data=NAME; leave it out"]


@pytest.mark.parametrize("separator", ["\x02", "^", "|"])
def test_what_is_written_reads_back(tmp_path: Path, separator: str) -> None:
    import yaml

    rng = np.random.default_rng(0)
    tags = [separator.join(f"t{j}" for j in rng.choice(9, rng.integers(1, 4), replace=False)) for _ in range(400)]
    write(tmp_path / "log.csv", clicks().with_columns(tags=pl.Series(tags)), "\t")
    found = yaml.safe_load(document(proposed(tmp_path), "mine"))
    assert found["sparse"]["tags"]["split"] == separator


# --- what a second set of strangers' files showed ------------------------------------------------------------


def outcomes(n: int = 2000, **columns: Any) -> pl.DataFrame:
    """Return clicks of users and items, with outcomes of which no name is known."""
    rng = np.random.default_rng(1)
    frame = clicks().select("user", "item", "ts").head(n)
    made = {name: rng.integers(0, high, frame.height) for name, high in columns.items()}
    return frame.with_columns(**{k: pl.Series(v) for k, v in made.items()})


@pytest.mark.parametrize(
    ("columns", "question"),
    [
        ({"watched_to_end": 2, "skipped": 2}, "watched_to_end, skipped hold yes and no"),
        ({"interaction_type": 5}, "is interaction_type the label? its numbers are kinds of events"),
    ],
)
def test_outcomes_without_a_known_name_are_no_interactions(
    columns: dict[str, int], question: str, tmp_path: Path
) -> None:
    write(tmp_path / "log.csv", outcomes(**columns))
    assert question in asked(tmp_path)[0]
    assert not asked(tmp_path, label=None)


def test_a_label_within_an_object(tmp_path: Path) -> None:
    rows = [
        {"user": {"id": u}, "item": {"id": i}, "ts": t, "outcome": {"clicked": bool(y), "seen": bool(k % 3)}}
        for k, (u, i, t, y) in enumerate(clicks().select("user", "item", "ts", LABEL).iter_rows())
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == "outcome.clicked" and not p.questions


@pytest.mark.parametrize("birth", ["date_naissance", "Geburtsdatum", "birthdate", "doğum_tarihi"])
def test_rows_are_not_split_by_dates_of_birth(birth: str, tmp_path: Path) -> None:
    born = [f"{1 + i % 28:02}/{1 + i % 12:02}/{1950 + i % 50}" for i in range(clicks().height)]
    write(tmp_path / "log.csv", clicks().select("user", "item", pl.Series(birth, born), LABEL))
    assert proposed(tmp_path).split.settings["by"] == "random"


def test_parts_of_another_outcome_are_no_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    frame = clicks().select("user", "item", "ts", LABEL)
    bought = (rng.random(frame.height) < 0.1).astype(int)
    at = np.where(bought, rng.integers(10**5, 10**6, frame.height), -1)
    write(tmp_path / "log.csv", frame.with_columns(conversion=pl.Series(bought), conversion_at=pl.Series(at)))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == LABEL
    assert not inputs(p) & {"conversion", "conversion_at"}


def test_ratings_with_many_values_ask_who_rates(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pl.DataFrame({"who": rng.integers(0, 200, 3000), "joke": rng.integers(0, 60, 3000)})
    write(tmp_path / "jokes.csv", frame.with_columns(rating=pl.Series(rng.uniform(-10, 10, 3000).round(2))))
    [text] = asked(tmp_path)
    assert "which column is the user and which the item of rating?" in text
    p = proposed(tmp_path, user="who", item="joke")
    assert p.label is not None and isinstance(p.label, NumberGuess) and not p.questions
    assert {"who", "joke"} <= {f.name for f in p.features.sparse}
    assert not asked(tmp_path, user=None, item=None)


def test_reviews_are_written_with_their_rating(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    words = [" ".join(rng.choice(["good", "bad", "fine", "works", "late", "nice"], 3)) for _ in range(2000)]
    frame = clicks().select("user", "item", "ts").head(2000)
    frame = frame.with_columns(
        rating=pl.Series(rng.integers(1, 6, frame.height)), title=pl.Series(words[: frame.height])
    )
    items = frame.select("item").unique(maintain_order=True).with_row_index("n")
    frame = frame.join(items, on="item").with_columns(item_title=pl.format("Title {}", "n")).drop("n")
    write(tmp_path / "log.csv", frame.with_columns(helpful_votes=pl.Series(rng.integers(0, 9, frame.height))))
    assert not inputs(proposed(tmp_path)) & {"title", "helpful_votes"}


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        (("고객번호", "상품번호", "노출시각", "클릭여부"), "cp949"),
        (("müşteri_no", "ürün_no", "tarih", "tıklandı"), "utf-8"),
        (("ग्राहक_आईडी", "उत्पाद_आईडी", "समय", "क्लिक"), "utf-8"),
        (("ユーザー", "商品", "日時", "クリック"), "utf-8"),
    ],
)
def test_names_in_other_alphabets(names: tuple[str, ...], encoding: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(lines(named(*names)).encode(encoding))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == names[3] and not p.questions
    assert (p.roles.user.name, p.roles.item.name) == names[:2]  # type: ignore[union-attr]


@pytest.mark.parametrize(("file", "content"), [("items.jsonl", "jsonl"), ("items.json", "jsonl")])
def test_side_tables_of_json_lines(file: str, content: str, tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().select("user", "item", "ts", LABEL))
    items = clicks().select("item").unique(maintain_order=True).with_row_index("n")
    rows = [{"item": i, "brand": f"b{n % 7}", "price": float(n)} for n, i in items.iter_rows()]
    (tmp_path / file).write_text("\n".join(map(json.dumps, rows)))
    p = proposed(tmp_path)
    [join] = p.source["joins"]
    assert join["file"] == file and {"brand", "price"} <= inputs(p)
    assert (join.get("format") == content) == (file == "items.json")


@pytest.mark.parametrize("amount", ["1 293,39 zł", "1\u202f293,39 €", "1\u2009293,39 €", "1 293,39 kr"])
def test_spaces_between_thousands(amount: str, tmp_path: Path) -> None:
    unit = amount.split()[-1]
    prices = [f"{100 + i % 77},{i % 100:02} {unit}" if i % 3 else amount for i in range(clicks().height)]
    write(tmp_path / "log.csv", clicks().select("user", "item", "ts", pl.Series("cost", prices), LABEL), ";")
    p = proposed(tmp_path)
    cost = next(c for c in p.columns if c.name == "cost")
    assert cost.kind.is_number and cost.numbers is not None and cost.numbers[0] == 1293.39


def test_times_in_chinese_letters(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", LABEL)
    times = [f"2024年03月{1 + i * 28 // frame.height:02}日 08:{i % 60:02}:13" for i in range(frame.height)]
    write(tmp_path / "log.csv", frame.with_columns(ts=pl.Series(times)))
    assert proposed(tmp_path).split.settings["by"] == "time"


def test_labels_belong_to_the_rows_of_their_name(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts")
    for part, rows in (("train", frame), ("test", frame.head(50))):
        write(tmp_path / f"X_{part}.csv", rows)
        write(tmp_path / f"y_{part}.csv", pl.DataFrame({"target": [i % 2 for i in range(rows.height)]}))
    with pytest.raises(UserError, match=r"paste -d, \S*X_train.csv \S*y_train.csv"):
        proposed(tmp_path)


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        (("Клиент", "Товар", "Дата", "Клик"), "cp1251"), (("Клиент", "Товар", "Дата", "Клик"), "koi8_r"),
        (("用戶", "商品", "日期", "點擊"), "big5"), (("ユーザー", "商品", "日時", "クリック"), "cp932"),
        (("ユーザー", "商品", "日時", "クリック"), "euc_jp"), (("χρήστης", "προϊόν", "ts", "κλικ"), "cp1253"),
        (("ลูกค้า", "สินค้า", "วันที่", "คลิก"), "cp874"), (("Nutzer", "Artikel", "Datum", "geklickt_Größe"), "cp1252"),
    ],
)  # fmt: skip
def test_letters_that_are_not_utf_8(names: tuple[str, ...], encoding: str, tmp_path: Path) -> None:
    frame = named(*names).with_columns(price=pl.Series(["¥12" if encoding == "gb18030" else "12"] * 400))
    (tmp_path / "log.csv").write_bytes(lines(frame).encode(encoding))
    p = proposed(tmp_path, label=names[3], user=names[0], item=names[1])
    assert p.source["encoding"] == encoding and p.label is not None and p.label.column.name == names[3]


@pytest.mark.parametrize("pad", ["", ",,,"])
def test_a_table_between_a_title_and_a_footer(pad: str, tmp_path: Path) -> None:
    table = lines(clicks().select("user", "item", "ts", LABEL))
    (tmp_path / "report.csv").write_text(f"Clicks of May{pad}\nby j.smith{pad}\n{table}Total{pad}\n")
    with pytest.raises(UserError, match=r"its first 2 lines are a title, and its last 1 line is a footer; remove them"):
        proposed(tmp_path)


def events(kinds: tuple[str, ...]) -> pl.DataFrame:
    kind = pl.Series("event_type", [kinds[i % len(kinds)] for i in range(clicks().height)])
    return clicks().select("user", "item", "ts", "price", kind)


def test_kinds_of_events_ask_and_lack_items(tmp_path: Path) -> None:
    """A purchase among views and pages is a guess; events of pages have no item, and are never positive."""
    frame = events(("product_view", "add_to_cart", "page_view", "purchase", "product_view"))
    write(tmp_path / "log.csv", frame.with_columns(item=pl.when(pl.col("event_type") != "page_view").then("item")))
    p = proposed(tmp_path)
    assert list(p.where) == ["item IS NOT NULL"]
    assert any("it would tell purchase from other kinds of events" in q.text for q in p.questions)


@pytest.mark.parametrize("name", ["model_score", "pctr", "score_model_v3", "predicted_ctr", "churn_probability"])
def test_the_prediction_of_another_model(name: str, tmp_path: Path) -> None:
    score = pl.Series(name, np.random.default_rng(0).random(400))
    write(tmp_path / "log.csv", clicks().with_columns(score, credit_score=score))
    p = proposed(tmp_path)
    assert not p.questions and name not in inputs(p) and "credit_score" in inputs(p)
    assert f"its name is that of a model's prediction: {AFTERWARDS}" in dict(p.features.left_out)[name]


def shown(folder: Path) -> None:
    """Write impressions, and a file of those that were clicked."""
    rows = clicks().select("user", "item", "ts", LABEL).with_row_index("impression_id", 10_000)
    write(folder / "shown.csv", rows.drop(LABEL))
    write(folder / "clicks.csv", rows.filter(pl.col(LABEL) == 1).select("impression_id", seconds="ts"))


def test_the_positive_rows_in_a_file_of_their_own(tmp_path: Path) -> None:
    shown(tmp_path)
    [question] = proposed(tmp_path).questions
    assert question.answers == ("label=clicks.csv",) and "of the rows, by impression_id" in question.text
    p = proposed(tmp_path, label="clicks.csv")
    assert p.label is not None and not p.questions
    assert p.label.share == pytest.approx(clicks()[LABEL].mean())
    assert p.source["joins"] == [
        {"file": "clicks.csv", "key": "impression_id", "columns": {"clicks_seconds": "seconds"}}
    ]
    assert p.features.derive == {"in_clicks": "clicks_seconds IS NOT NULL"} and "clicks_seconds" not in inputs(p)


def test_an_outcome_that_is_written_as_its_time(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", "price", bought_at=pl.when(pl.col(LABEL) == 1).then(pl.col("ts")))
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path, label="bought_at")
    assert p.label is not None and p.label.column.name == "has_bought_at"
    assert p.features.derive["has_bought_at"] == "bought_at IS NOT NULL" and "bought_at" not in inputs(p)


def test_labels_that_are_named_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tags = {f"tag_{n}": rng.integers(0, 2, 400) for n in ("music", "sports", "news")}
    write(tmp_path / "log.csv", clicks().select(pl.col("price").alias("size"), "city").with_columns(**tags))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == "tag_news" and not inputs(p) & {"tag_music", "tag_sports"}
    assert "2 have names like it" in p.questions[0].text


def test_a_column_of_splits(tmp_path: Path) -> None:
    split = pl.Series("eval_set", ["prior", "train", "prior", "test"] * 100)
    write(tmp_path / "log.csv", clicks().with_columns(split))
    p = proposed(tmp_path)
    assert "eval_set names splits" in p.questions[0].text and "eval_set" not in inputs(p)


def test_the_number_of_an_impression_is_no_user(tmp_path: Path) -> None:
    frame = clicks().select("user", "ts", "item", LABEL)
    for name in ("train", "dev"):
        rows = frame.with_row_index("n", 1).rows()
        (tmp_path / f"{name}.tsv").write_text("".join("\t".join(map(str, r)) + "\n" for r in rows))
    p = proposed(tmp_path)
    assert p.roles.user is not None and p.roles.user.values[0] == frame["user"][0]


def test_empty_values_are_no_separator(tmp_path: Path) -> None:
    """Most lines have one ;; where nobody used a coupon."""
    frame = clicks().with_columns(coupon=pl.Series([None if i % 9 else "MAY" for i in range(400)], dtype=pl.String))
    write(tmp_path / "log.csv", frame.select("user", "item", "coupon", "ts", LABEL), ";")
    assert proposed(tmp_path).source["separator"] == ";"


def test_two_ids_are_no_decimal_number(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().select("user", "item", "ts", LABEL))
    items = clicks().select("item").unique(maintain_order=True).with_row_index("n")
    rows = items.select("item", tag=pl.format("{},{}", (pl.col("n") * 7) % 29 + 10, (pl.col("n") * 5) % 29 + 10))
    rows.write_csv(tmp_path / "items.csv")
    p = proposed(tmp_path)
    assert not any("tag" in sql for sql in p.features.derive.values())


def test_files_of_one_name_in_two_folders_are_joined_once(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write(tmp_path / split / "log.csv", clicks().select("user", "item", "ts", LABEL))
        items = clicks().select("item").unique(maintain_order=True).with_row_index("n")
        write(tmp_path / split / "items.csv", items.select("item", kind=pl.format("k{}", pl.col("n") % 7)))
    p = proposed(tmp_path)
    assert [j["file"] for j in p.source["joins"]] == ["train/items.csv"]
    assert any("has the columns of train/items.csv; write both into one file" in why for _, why in p.unused)


def test_an_empty_file_is_said(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks())
    (tmp_path / "log2.csv").write_text("")
    assert ("log2.csv", "is empty") in proposed(tmp_path).unused


def test_a_side_table_with_an_index(tmp_path: Path) -> None:
    """pandas writes a first column without a name."""
    write(tmp_path / "log.csv", clicks().select("user", "item", "ts", LABEL))
    items = clicks().select("item").unique(maintain_order=True).with_row_index("n")
    rows = items.select("n", "item", kind=pl.format("k{}", pl.col("n") % 7)).rename({"n": ""})
    rows.write_csv(tmp_path / "items.csv")
    [join] = proposed(tmp_path).source["joins"]
    assert join["columns"] == {"kind": "kind"}


def test_a_matrix_of_ratings_says_how_to_melt_it(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-10, 10, (200, 40)).round(2)
    (tmp_path / "ratings.csv").write_text("\n".join(",".join(map(str, row)) for row in values))
    with pytest.raises(NeedsAnswer, match="each row is a user and each column an item, write a row for each value"):
        proposed(tmp_path)


def test_the_mean_of_the_label_in_a_side_table(tmp_path: Path) -> None:
    """An average over all reviews counts those of the test split, too."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 60, 3000), rng.integers(0, 80, 3000)
    rows = pl.DataFrame({"user_id": [f"u{u}" for u in users], "item_id": [f"i{i}" for i in items]})
    rows = rows.with_columns(
        stars=pl.Series(np.clip(rng.integers(1, 6, 3000) + users % 3 - 1, 1, 5)), ts=pl.Series(range(3000))
    )
    write(tmp_path / "reviews.csv", rows)
    of_users = rows.group_by("user_id", maintain_order=True).agg(
        mean_of_all=pl.col("stars").mean().round(2), fans=pl.len() % 17
    )
    write(tmp_path / "users.csv", of_users)
    p = proposed(tmp_path, label="stars")
    assert "mean_of_all" not in inputs(p) and "fans" in inputs(p)
    assert any(n == "mean_of_all" and "the mean stars of a user_id" in why for n, why in p.features.left_out)


def test_the_reason_of_a_refusal(tmp_path: Path) -> None:
    reasons = pl.when((pl.col(LABEL) == 0) & (pl.int_range(pl.len()) % 2 == 0)).then(pl.lit("too far"))
    write(tmp_path / "log.csv", clicks().with_columns(cancel_reason=reasons))
    p = proposed(tmp_path)
    assert "cancel_reason" not in inputs(p)


def test_an_item_within_objects(tmp_path: Path) -> None:
    """`pid` could be a product; the user says that it is the playlist."""
    rows = [
        {"pid": i, "tracks": [{"pos": j, "uri": f"t{(i * 7 + j) % 90}"} for j in range(2 + i % 5)]} for i in range(300)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    p = proposed(tmp_path, user="pid", item="tracks.uri")
    assert p.source["explode"] == "tracks" and p.roles.item is not None and p.roles.item.values[0] == "t0"


def test_answers_keep_side_tables_and_splits(tmp_path: Path) -> None:
    for name in ("ua", "ub"):
        for split in ("train", "test"):
            write(tmp_path / f"{name}.{split}.csv", clicks().select("user", "item", "ts", LABEL))
    items = clicks().select("item").unique(maintain_order=True).with_row_index("n")
    write(tmp_path / "items.csv", items.select("item", kind=pl.format("k{}", pl.col("n") % 7)))
    [question] = proposed(tmp_path).questions
    for name, answer in zip(("ua", "ub"), question.answers, strict=True):
        files = [tmp_path / f"{name}.test.csv", tmp_path / f"{name}.train.csv", tmp_path / "items.csv"]
        assert answer == f"'files=[{','.join(map(str, files))}]'"


def test_times_spent_may_be_what_to_predict(tmp_path: Path) -> None:
    rows = clicks().select("user", "item", "ts", dwell_time_ms=pl.col("price").cast(pl.Float64) * 1000)
    write(tmp_path / "log.csv", rows)
    assert proposed(tmp_path).questions[0].answers == ("label=null", "label=dwell_time_ms")
    assert not proposed(tmp_path, label=None).questions


def test_the_next_item_of_a_history_is_no_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(" ".join(f"i{i}" for i in rng.integers(0, 90, rng.integers(2, 9))), f"i{s % 90}") for s in range(900)]
    (tmp_path / "log.csv").write_text("prev,next_item\n" + "\n".join(",".join(r) for r in rows))
    with pytest.raises(UserError, match="its values are the elements of prev: the next item of a history"):
        proposed(tmp_path, label="next_item")


@pytest.mark.parametrize(("yes", "no"), [("J", "N"), ("Sí", "No"), ("oui", "non"), ("да", "нет")])
def test_answers_in_other_languages(yes: str, no: str, tmp_path: Path) -> None:
    """A column of yes and no of a log is asked about, not dropped as retrieval models would."""
    frame = clicks().select(
        "user", "item", "ts", zzz=pl.when(pl.col(LABEL) == 1).then(pl.lit(yes)).otherwise(pl.lit(no))
    )
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert (
        isinstance(p.label, BinaryGuess) and p.label.column.name == "zzz" and p.label.positive == [yes] and p.questions
    )


def test_arms_of_an_experiment_are_no_label(tmp_path: Path) -> None:
    """Without a header, a column of two texts at the end is a guess."""
    rows = clicks().select("price", "city").with_columns(arm=pl.Series(["A", "B"] * 200))
    (tmp_path / "log.csv").write_text("\n".join(",".join(map(str, r)) for r in rows.rows()))
    assert "is column_3 the label?" in proposed(tmp_path).questions[0].text


def test_umlauts_are_not_cyrillic(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", LABEL).with_columns(Größe=pl.Series(["5 €", "Fuß", "Öl", "ä"] * 100))
    (tmp_path / "log.csv").write_bytes(lines(frame).encode("cp1252"))
    assert proposed(tmp_path).source["encoding"] == "cp1252"


def test_a_sample_of_a_submission_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", clicks())
    write(tmp_path / "sample_submission.csv", clicks().with_columns(pl.lit(0).alias(LABEL)))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.share == pytest.approx(clicks()[LABEL].mean())
    assert any(f == "sample_submission.csv" and "placeholders" in why for f, why in p.unused)


def test_bytes_and_durations(tmp_path: Path) -> None:
    ids = pl.Series("impression_id", [bytes([255, i // 256, i % 256]) * 5 for i in range(400)])
    ttl = pl.Series("ttl", [i % 9 for i in range(400)]).cast(pl.Duration("ms"))
    clicks().with_columns(ids, ttl).write_parquet(tmp_path / "log.parquet")
    p = proposed(tmp_path)
    assert p.label is not None and not inputs(p) & {"impression_id", "ttl"}


def test_a_folder_of_a_partition_is_no_label(tmp_path: Path) -> None:
    for arm in ("a", "b"):
        write(tmp_path / f"arm={arm}" / "log.csv", clicks().select(pl.col("price").alias("size"), "city"))
    with pytest.raises(NeedsAnswer, match="no name says which column is the label"):
        proposed(tmp_path)


def test_words_of_items_are_a_history(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pasts = [" ".join(f"i{i}" for i in rng.integers(0, 200, 3 + u % 9)) for u in range(400)]
    rows = pl.DataFrame(
        {"user": [f"u{u}" for u in range(400)] * 3, "item": [f"i{i}" for i in rng.integers(0, 200, 1200)]}
    )
    write(tmp_path / "log.csv", rows.with_columns(past=pl.Series(pasts * 3), click=pl.Series(rng.integers(0, 2, 1200))))
    p = proposed(tmp_path)
    [past] = [f for f in p.features.sparse if f.name == "past"]
    assert past.settings["split"] == " " and past.settings["table"] == "item"


# --- days of folders, codes of ranges, other calendars -----------------------------------------------------


def test_the_time_of_a_row_is_finer_than_the_day_of_its_folder(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", LABEL)
    days = pl.from_epoch("ts").dt.date().cast(pl.String)
    for (day,), rows in frame.group_by(days.alias("day"), maintain_order=True):
        write(tmp_path / f"dt={day}" / "part-0.csv", rows.rename({"ts": "event_ms"}))
    p = proposed(tmp_path)
    assert p.split.settings["column"] == "event_ms" and "dt" in inputs(p)


def test_99_among_small_ratings_is_no_rating(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ratings = np.where(rng.random(4000) < 0.5, 99, rng.normal(1, 4, 4000).clip(-10, 10).round(2))
    rated = {"user": rng.integers(0, 200, 4000), "item": rng.integers(0, 50, 4000), "rating": ratings}
    write(tmp_path / "rows.csv", pl.DataFrame(rated))
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.nulls == ["99.0"] and list(p.where) == ["rating IS NOT NULL"]


def test_numbers_of_ranges_are_codes(tmp_path: Path) -> None:
    frame = clicks().with_columns(age_range=pl.Series(np.random.default_rng(0).integers(1, 40, len(clicks()))))
    write(tmp_path / "log.csv", frame)
    assert "age_range" in {f.name for f in proposed(tmp_path).features.sparse}


def test_years_of_another_calendar_are_asked_about(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().with_columns(pl.from_epoch("ts").dt.offset_by("543y")))
    assert any("times of the year 25" in text for text in asked(tmp_path))


def test_kinds_of_events_of_several_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = pl.Series("action_type", rng.choice(["clickout item", "search for poi", "filter selection"], len(clicks())))
    frame = (
        clicks()
        .select("user", "ts", reference="item")
        .with_columns(kinds, mobile=pl.Series(rng.random(len(kinds)) < 0.5))
    )
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert isinstance(p.label, BinaryGuess) and p.label.positive == ["clickout item"] and p.label.doubt


def test_an_answer_to_several_logs_keeps_the_side_tables(tmp_path: Path) -> None:
    frame = clicks()
    write(tmp_path / "views.csv", frame.select("user", "item", "ts"))
    write(tmp_path / "orders.csv", frame.select("user", "item", "ts", quantity=pl.lit(2)).head(500))
    write(tmp_path / "people.csv", frame.select("user").unique(maintain_order=True).with_columns(country=pl.lit("at")))
    [question] = [q for q in proposed(tmp_path).questions if "which one holds the rows" in q.text]
    assert len(question.answers) == 2 and all("people.csv" in answer for answer in question.answers)


def test_a_side_table_whose_key_is_called_id(tmp_path: Path) -> None:
    frame = clicks().with_columns(recipe_id=pl.col("item").str.extract(r"(\d+)").cast(pl.Int64) + 7).drop("item")
    write(tmp_path / "ratings.csv", frame)
    recipes = frame.select(id="recipe_id").unique(maintain_order=True)
    kinds = pl.Series("course", np.random.default_rng(0).choice(["soup", "cake"], len(recipes)))
    write(tmp_path / "RAW_recipes.csv", recipes.with_columns(kinds))
    [side] = proposed(tmp_path).sides
    assert side.key == "recipe_id" and side.file_key == "id"


def test_a_refusal_names_the_columns_that_may_be_user_and_item(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", named("internaute_x", "annonce_x", "ts", LABEL).drop(LABEL))
    with pytest.raises(NeedsAnswer, match="type user=internaute_x item=annonce_x"):
        proposed(tmp_path, label=None)


# --- states, codes and refusals ----------------------------------------------------------------------------


def with_states(name: str, states: list[Any]) -> pl.DataFrame:
    chosen = np.random.default_rng(0).choice(len(states), len(clicks()))
    return clicks().drop(LABEL).with_columns(pl.Series(name, [states[i] for i in chosen]))


@pytest.mark.parametrize(
    ("name", "states"),
    [("Статус", ["Новый", "Отказ", "Успешно реализовано"]), ("order status", ["open", "lost", "paid out"])],
)
def test_states_are_asked_which_are_positive(tmp_path: Path, name: str, states: list[str]) -> None:
    write(tmp_path / "log.csv", with_states(name, states))
    [question] = [q for q in proposed(tmp_path, label=name).questions if "positive" in q.text]
    assert any(a.endswith(f"'positive={states[2]}'") for a in question.answers)
    p = proposed(tmp_path, label=name, positive=(states[2],))
    assert isinstance(p.label, BinaryGuess) and p.label.positive == [states[2]] and not p.questions
    with pytest.raises(UserError, match=f"^positive=won: {name} has no such value"):
        proposed(tmp_path, label=name, positive=("won",))
    made = proposed(tmp_path, label=name, positive=None)
    assert made.label is not None and made.label.classes and not made.questions


def test_codes_of_answers_are_asked_about(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", with_states("respuesta", [1, 2, 9]))
    [question] = [q for q in proposed(tmp_path).questions if "positive" in q.text]
    assert question.answers[0] == "label=respuesta positive=1"


def test_yes_to_a_refusal_is_not_positive(tmp_path: Path) -> None:
    frame = clicks().with_columns(pl.when(pl.col(LABEL) == 1).then(pl.lit("N")).otherwise(pl.lit("Y")).alias("skipped"))
    write(tmp_path / "log.csv", frame.drop(LABEL))
    p = proposed(tmp_path)
    assert isinstance(p.label, BinaryGuess) and p.label.positive == ["N"]


def test_what_may_be_written_with_a_rating_is_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rating = rng.integers(1, 6, len(clicks()))
    fit = [["small", "good", "large"][(r > 3) * 1 if rng.random() < 0.8 else 2] for r in rating]
    frame = clicks().drop(LABEL).with_columns(rating=pl.Series(rating), sits=pl.Series(fit))
    write(tmp_path / "reviews.csv", frame)
    assert "is sits known before rating? neither the user nor the item has always the same value" in asked(tmp_path)
    assert "sits" not in inputs(proposed(tmp_path))


@pytest.mark.parametrize("name", ["Abgemeldet", "Czas rozwiązania", "refund_amount", "İade Tutarı"])
def test_what_is_known_when_a_matter_is_over_is_no_feature(tmp_path: Path, name: str) -> None:
    write(
        tmp_path / "log.csv",
        clicks().with_columns(pl.Series(name, np.random.default_rng(0).integers(0, 9, len(clicks())))),
    )
    assert name not in inputs(proposed(tmp_path))


# --- files that hold each other's rows, and those without labels -------------------------------------------


def test_a_file_with_the_rows_of_others_is_asked_about(tmp_path: Path) -> None:
    frame = clicks()
    for name, rows in (("u.data", frame), ("u1.base", frame[:300]), ("u1.test", frame[300:])):
        write(tmp_path / name, rows.select("user", "item", LABEL, "ts"), "\t", header=False)
    [question] = [q for q in proposed(tmp_path).questions if "has the rows of" in q.text]
    assert question.text.startswith("u.data has the rows of u1.base, u1.test, too")
    assert question.answers[0] == f"files={tmp_path / 'u.data'}"
    assert question.answers[1] == f"'files=[{tmp_path / 'u1.base'},{tmp_path / 'u1.test'}]'"


def test_test_rows_without_a_label_are_to_be_predicted(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        write(tmp_path / name / "part-0.csv", clicks().with_columns(clk=-1 if name == "test" else LABEL).drop(LABEL))
    p = proposed(tmp_path)
    assert p.split.settings["test_files"] == ["dev/part-0.csv"]
    assert ("test/part-0.csv", "none of its rows has a clk; predict them with recsys.predict") in p.unused


def test_a_file_of_no_split_is_asked_about(tmp_path: Path) -> None:
    for i, name in enumerate(("train", "holdout", "fresh")):
        write(tmp_path / name / f"{i}.csv", clicks(i))
    [question] = [q for q in proposed(tmp_path).questions if "belongs to no split" in q.text]
    assert "fresh" not in question.answers[0] and "train" in question.answers[0]


def test_kinds_of_json_lines_are_not_one_file(tmp_path: Path) -> None:
    frame = clicks().rename({LABEL: "stars"}).with_columns(pl.lit("t").alias("text"))
    frame.select("user", business_id="item", stars="stars", date="ts", text="text").write_ndjson(
        tmp_path / "review.json"
    )
    frame.select(business_id="item", date="ts").write_ndjson(tmp_path / "checkin.json")
    shops = (
        frame.select(business_id="item")
        .unique(maintain_order=True)
        .with_columns(stars=pl.lit(4), town=pl.col("business_id").str.slice(1, 1))
    )
    shops.write_ndjson(tmp_path / "business.json")
    p = proposed(tmp_path)
    assert p.source["files"] == ["review.json"] and [s.file for s in p.sides] == ["business.json"]


def test_a_key_of_another_name(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks())
    write(
        tmp_path / "profiles.csv",
        clicks().select(userid="user").unique(maintain_order=True).with_columns(level=pl.col("userid").str.slice(1, 1)),
    )
    assert [(s.key, s.file_key) for s in proposed(tmp_path).sides] == [("user", "userid")]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_rows_within_rows_get_the_command_that_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    shown = [rng.choice(50, 5, replace=False).tolist() for _ in range(200)]
    if form == "parquet":
        frame = pl.DataFrame({"user_id": range(200), "in_view": shown, "chosen": [s[:1] for s in shown]})
        frame.write_parquet("log.parquet")
    else:
        pl.DataFrame(
            {"key": ["a"] * 200, "value": [json.dumps({"uid": i, "ad": i % 7}) for i in range(200)]}
        ).write_ndjson("log.jsonl")
    with pytest.raises(NeedsAnswer) as e:
        propose([f"log.{form}"])
    command = str(e.value).partition('python -c "')[2].partition('"; or keep')[0]
    subprocess.run([sys.executable, "-c", command], check=True)
    made = pl.read_parquet("rows.parquet")
    if form == "parquet":
        assert made.height == 1000 and made["clicked"].mean() == pytest.approx(0.2)
    else:
        assert made.columns == ["key", "value_uid", "value_ad"] and made["value_ad"].max() == 6


# --- numbers and letters -----------------------------------------------------------------------------------


def test_days_of_excel_are_times(tmp_path: Path) -> None:
    days = [f"{45_000 + i / 7:.5f}".replace(".", ",") for i in range(len(clicks()))]
    write(tmp_path / "log.csv", clicks().drop("ts", "price").with_columns(dt_hora=pl.Series(days)), ";")
    p = proposed(tmp_path)
    assert p.roles.time is not None and p.roles.time.time is not None and p.roles.time.time.moments is not None
    assert str(p.roles.time.time.moments[0]) == "2023-03-15 00:00:00"


def test_three_decimals_beside_two_are_no_thousands(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    amounts = {
        "qty": [f"{x},000" for x in rng.integers(1, 9, 400)],
        "paid": [f"{x},95" for x in rng.integers(1, 900, 400)],
    }
    write(
        tmp_path / "log.csv",
        clicks()[:400].drop("price").with_columns(**{n: pl.Series(v) for n, v in amounts.items()}),
        ";",
    )
    p = proposed(tmp_path)
    assert p.source["decimal"] == "," and "thousands" not in p.source


@pytest.mark.parametrize(
    ("encoding", "name"), [("cp1254", "Müşteri ödemesi yapıldı mı"), ("cp1252", "DESCRIÇÃO do anúncio")]
)
def test_letters_of_turkish_and_portuguese(tmp_path: Path, encoding: str, name: str) -> None:
    frame = clicks().with_columns(pl.lit(f"{name} ").alias(name) + pl.col("city").str.replace("ö", ""))
    (tmp_path / "log.csv").write_bytes(lines(frame, ";").encode(encoding, errors="replace"))
    assert name in {c.name for c in proposed(tmp_path).columns}


def test_long_numbers_under_the_name_of_a_user_are_no_fractions(tmp_path: Path) -> None:
    users = clicks()["user"].str.slice(1).cast(pl.Int64)
    frame = clicks().drop("user").with_columns(user_pseudo_id=(users + 1_000_000).cast(pl.String) + ".1690000660")
    frame.write_parquet(tmp_path / "log.parquet")
    p = proposed(tmp_path)
    assert p.roles.user is not None and p.roles.user.name == "user_pseudo_id"


# --- reviews, watched time, and numbers that know too much -------------------------------------------------


def test_the_parts_of_a_review_are_no_features_of_its_rating(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    overall = rng.integers(2, 10, len(clicks())) / 2
    parts = {f"review_{n}": (overall + rng.choice([-0.5, 0, 0.5], len(overall))).clip(1, 5) for n in ("taste", "look")}
    frame = (
        clicks()
        .drop(LABEL)
        .with_columns(review_overall=pl.Series(overall), **{n: pl.Series(x) for n, x in parts.items()})
    )
    write(tmp_path / "reviews.csv", frame)
    p = proposed(tmp_path)
    assert p.label is not None and p.label.column.name == "review_overall" and not {*parts} & inputs(p)


def test_watched_time_is_an_outcome(tmp_path: Path) -> None:
    seconds = pl.Series(np.random.default_rng(0).exponential(60, len(clicks())).round(1))
    for name in ("watched_minutes", "listened_sec", "nezett_perc", "view_duration"):
        folder = tmp_path / name
        write(folder / "log.csv", clicks().with_columns(seconds.alias(name)))
        assert name not in inputs(proposed(folder)), name
    write(tmp_path / "length" / "log.csv", clicks().with_columns(seconds.alias("video_length")))
    assert "video_length" in inputs(proposed(tmp_path / "length"))


def test_a_number_that_alone_orders_the_rows_is_asked_about(tmp_path: Path) -> None:
    noise = pl.Series(np.random.default_rng(0).normal(0, 0.38, len(clicks())))
    write(tmp_path / "log.csv", clicks().with_columns(x7=(pl.col(LABEL) + noise).round(3)))
    [question] = [q for q in proposed(tmp_path).questions if "x7" in q.text]
    assert "it alone orders the rows with an AUC of 0.9" in question.text


def test_test_rows_of_users_and_items_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = clicks().select("user", "item", LABEL)
    after = {f"x{i}": pl.Series(rng.integers(0, 9, len(frame))) for i in range(7)}
    write(tmp_path / "actions.csv", frame.with_columns(**after))
    write(tmp_path / "test.csv", frame.select("user", "item"))
    assert inputs(proposed(tmp_path)) == {"user", "item"}


def test_several_outcomes_without_a_main_one_are_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = (
        clicks()
        .drop(LABEL)
        .with_columns(*(pl.Series(name, rng.integers(0, 2, len(clicks()))) for name in ("like", "follow", "share")))
    )
    write(tmp_path / "log.csv", frame)
    assert "is like the label? follow, share are outcomes, too" in asked(tmp_path)


def test_a_log_without_a_header_beside_files_of_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 900
    rated = pl.DataFrame(
        {
            "u": rng.integers(1, 90, n),
            "genre": rng.integers(1, 18, n),
            "i": rng.integers(1, 60, n),
            "stars": rng.integers(1, 6, n),
        }
    ).with_columns(day=pl.Series([f"2001-{1 + i // 80:02d}-{1 + i % 28:02d}" for i in range(n)]))
    write(tmp_path / "ratings.txt", rated, header=False)
    write(
        tmp_path / "trust.txt",
        pl.DataFrame({"a": rng.integers(1, 90, 3 * n), "b": rng.integers(1, 90, 3 * n)}),
        header=False,
    )
    p = proposed(tmp_path)
    assert p.source["files"] == ["ratings.txt"] and p.source["columns"] == [
        "user",
        "column_2",
        "item",
        "rating",
        "timestamp",
    ]


def test_rows_that_have_no_list_are_not_lost(tmp_path: Path) -> None:
    rows = clicks().select("user", "item", "ts").to_dicts()
    for i, row in enumerate(rows):
        row["products"] = [{"sku": f"s{i % 9}"}] if i % 3 == 0 else []
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    p = proposed(tmp_path, label=None)
    assert "explode" not in p.source and p.rows == pytest.approx(len(rows), rel=0.01)


def test_files_called_log_are_data(tmp_path: Path) -> None:
    for name in ("imp.log", "imp.log.1"):
        write(tmp_path / name, clicks(len(name)))
    assert proposed(tmp_path).source["files"] == ["*"]


@pytest.mark.parametrize("text", ["Návštěvník klikl na zboží", "Zażółć gęślą jaźń łąka", "hűvös őszi szőlő"])
def test_letters_of_central_europe(tmp_path: Path, text: str) -> None:
    frame = (
        clicks().drop("city").with_columns(pl.lit(text).alias("město" if "ě" in text else "hely"), note=pl.col("tags"))
    )
    (tmp_path / "log.csv").write_bytes(lines(frame.with_columns(k=pl.lit(text) + pl.col("item")), ";").encode("cp1250"))
    assert any(text in str(v) for c in proposed(tmp_path).columns for v in c.values.head(2).to_list())


def test_plain_spaces_between_thousands(tmp_path: Path) -> None:
    amounts = [f"{1 + i % 90} {i % 1000:03d},{i % 100:02d}" for i in range(len(clicks()))]
    write(tmp_path / "log.csv", clicks().drop("price").with_columns(montant=pl.Series(amounts)), ";")
    p = proposed(tmp_path)
    assert (p.source["thousands"], p.source["decimal"]) == (" ", ",") and "montant" in {
        f.name for f in p.features.dense
    }


# --- what the words say, and what only counts --------------------------------------------------------------


@pytest.mark.parametrize(("yes", "no"), [("true", "false"), ("Y", "N"), ("oui", "non"), ("ja", "nein"), ("S", "N")])
def test_yes_is_positive_however_frequent(tmp_path: Path, yes: str, no: str) -> None:
    often = pl.Series("completed", [yes if x < 0.8 else no for x in np.random.default_rng(0).random(len(clicks()))])
    write(tmp_path / "log.csv", clicks().drop(LABEL).with_columns(often))
    p = proposed(tmp_path, label="completed")
    assert isinstance(p.label, BinaryGuess) and p.label.positive == [yes]
    p = proposed(tmp_path, positive=(no,))
    assert isinstance(p.label, BinaryGuess) and p.label.positive == [no]
    with pytest.raises(
        UserError, match=f"^positive=7: completed has no such value; valid: {min(yes, no)}, {max(yes, no)}$"
    ):
        proposed(tmp_path, positive=("7",))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("values", [(1, 0), (True, False), ("yes", "no")])
def test_rows_that_users_have_not_chosen_are_no_silent_interactions(
    tmp_path: Path, values: tuple[object, object], kind: str
) -> None:
    """Without a label, the config says which condition keeps the positive rows; SQL reads text of CSV as text."""
    frame = clicks().with_columns(pl.Series(LABEL, [values[1 - y] for y in clicks()[LABEL]]))
    write(tmp_path / "log.csv", frame) if kind == "csv" else frame.write_parquet(tmp_path / "log.parquet")
    reason = dict(proposed(tmp_path, label=None).features.left_out)[LABEL]
    what, _, sql = reason.partition(", and the others count as interactions, too, unless you add: where: ")
    assert what.endswith("% of the rows are positive")
    read = pl.read_csv(tmp_path / "log.csv", infer_schema=False) if kind == "csv" else frame
    assert filter_rows(sql, read).height == (frame[LABEL] == values[0]).sum()


def test_what_is_not_skipped_is_wanted(tmp_path: Path) -> None:
    frame = clicks().with_columns(
        pl.when(pl.col(LABEL) == 1).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("not_skipped")
    )
    write(tmp_path / "log.csv", frame.drop(LABEL))
    p = proposed(tmp_path, label="not_skipped")
    assert isinstance(p.label, BinaryGuess) and p.label.positive == ["yes"]


def test_counts_of_outcomes_are_no_features(tmp_path: Path) -> None:
    counts = pl.Series("n_clicks", np.random.default_rng(7).integers(0, 5, len(clicks())))
    write(tmp_path / "log.csv", clicks().with_columns(counts))
    assert "n_clicks" not in inputs(proposed(tmp_path))


def test_states_of_rows_with_a_user_and_an_item_are_asked_about(tmp_path: Path) -> None:
    write(tmp_path / "deals.csv", with_states("Stage", ["Closed Won", "Closed Lost", "Negotiation"]))
    assert asked(tmp_path)[0].startswith("is Stage the label? its values are states: ")


def test_surrogate_keys_are_ids(tmp_path: Path) -> None:
    frame = clicks().with_columns(
        pl.col("user").str.slice(1).cast(pl.Int64) + 7000, pl.col("item").str.slice(1).cast(pl.Int64)
    )
    write(tmp_path / "log.csv", frame.rename({"user": "CUSTOMER_SK", "item": "OFFER_SK"}))
    p = proposed(tmp_path)
    assert p.roles.user is not None and p.roles.item is not None
    assert (p.roles.user.name, p.roles.item.name) == ("CUSTOMER_SK", "OFFER_SK")


def test_the_time_of_a_row_is_not_that_of_its_end(tmp_path: Path) -> None:
    day = pl.from_epoch("ts").dt.date()
    frame = (
        clicks()
        .drop("ts")
        .with_columns(clicks().select(day.alias("Date de clôture"), day.alias("Proposé le")))
        .with_columns(pl.col("Date de clôture") + pl.duration(days=9))
    )
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    assert p.split.settings["column"] == "Proposé le" and "Date de clôture" not in inputs(p)


def test_numbers_of_orders_are_no_times(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", clicks().with_columns(Bestellnr=pl.int_range(pl.len()) // 3 + 2_026_000_001))
    p = proposed(tmp_path)
    assert p.split.settings["column"] == "ts" and not any("Bestellnr" in q.text for q in p.questions)


def test_interactions_without_a_user_are_left_out(tmp_path: Path) -> None:
    user = pl.when(pl.int_range(pl.len()) % 5 == 0).then(None).otherwise(pl.col("user"))
    write(tmp_path / "log.csv", clicks().select(user.alias("user"), "item", "ts"))
    assert list(proposed(tmp_path).where) == ["user IS NOT NULL"]


def test_lines_that_begin_with_their_number_of_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.choice(90, rng.integers(3, 9), replace=False) for _ in range(80)]
    (tmp_path / "users.dat").write_text("".join(f"{len(r)} {' '.join(map(str, r))}\n" for r in rows))
    with pytest.raises(
        UserError, match="each line begins with the number of the values that follow; remove it: cut -d"
    ):
        proposed(tmp_path)


def test_a_date_that_stands_for_never_is_not_the_time_of_a_row(tmp_path: Path) -> None:
    days = pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 2, 9), eager=True).head(40)
    delivered = pl.Series([*days[1:], None]).fill_null(pl.date(9999, 12, 31))
    row = pl.int_range(len(clicks()), eager=True) % 40
    write(tmp_path / "log.csv", clicks().drop("ts").with_columns(lieferdatum=delivered[row], bestelldatum=days[row]))
    p = proposed(tmp_path)
    assert p.roles.time is not None and p.roles.time.name == "bestelldatum" and not p.questions


def test_an_item_under_the_name_of_an_event(tmp_path: Path) -> None:
    write(tmp_path / "clicks_hour_000.csv", clicks().select("user", "ts", click_article_id="item", click_os="price"))
    p = proposed(tmp_path)
    assert p.retrieves and p.roles.item is not None and p.roles.item.name == "click_article_id"


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("beer_beerid", NAMES.items),
        ("review_profilename", NAMES.users),
        ("會員卡號", NAMES.users),
        ("商品編碼", NAMES.items),
        ("商品编码", NAMES.items),
    ],
)
def test_names_of_users_and_items(name: str, of: tuple[str, ...]) -> None:
    assert names_an_id_of(name, of) and not names_an_id_of(name, NAMES.users if of is NAMES.items else NAMES.items)


def test_pictures_of_a_review_are_written_with_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"user_id": f"u{i % 60}", "asin": f"B{i % 37}", "rating": int(rng.integers(1, 6)), "ip": int(rng.integers(9000)),
         "images": [f"p{i}"] * int(rng.integers(0, 3)), "badges": ["top"] if i == 7 else []}
        for i in range(600)
    ]  # fmt: skip
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    p = proposed(tmp_path)
    left_out = dict(p.features.left_out)
    assert "may be written with rating" in left_out["images"] and left_out["badges"] == "nearly all lists are empty"
    assert "ip" in {f.name for f in p.features.sparse}


def test_the_file_that_has_the_rows_of_another_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "full.csv", clicks())
    write(tmp_path / "tenth.csv", clicks().sample(fraction=0.1, seed=0))
    p = proposed(tmp_path)
    assert p.source["files"] == ["full.csv"] and ("tenth.csv", "another file has its rows, too") in p.unused
    assert any("full.csv has the rows of tenth.csv, too" in q.text for q in p.questions)


def test_another_name_of_a_user_in_a_side_table_is_no_feature(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, alias = rng.permutation(90_000)[:1600] + 1, rng.permutation(9_000_000)[:1600]
    rows = [
        (users[rng.integers(1600)], rng.integers(90), rng.integers(1, 6), 1_400_000_000 + 60 * i) for i in range(6000)
    ]
    for name, lines_ in (("ratings", rows), ("users", list(zip(users, alias, strict=True)))):
        (tmp_path / f"{name}.dat").write_text("".join("::".join(map(str, line)) + "\n" for line in lines_))
    p = proposed(tmp_path)
    assert any(name == "users.dat" for name, _ in p.unused) and "users_2" not in {
        f.name for f in p.features.sparse + p.features.dense
    }


def test_how_long_it_took_is_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seconds = (rng.exponential(100, len(clicks())) * (1 + 2 * clicks()[LABEL].to_numpy())).astype(int)
    write(tmp_path / "log.csv", clicks().with_columns(duration=pl.Series(seconds), distance=pl.Series(seconds)))
    p = proposed(tmp_path)
    assert [q.text.partition("?")[0] for q in p.questions] == [f"is duration known before {LABEL}"]
    assert {"duration", "distance"} & inputs(p) == {"distance"}


@pytest.mark.parametrize(("needs", "advice"), [(True, "{only_if: clicked}"), (False, "conversion: {}}")])
def test_a_second_outcome_follows_the_first_only_if_it_needs_it(needs: bool, advice: str, tmp_path: Path) -> None:
    bought = pl.Series("conversion", np.random.default_rng(0).random(len(clicks())) < 0.3).cast(pl.Int8)
    bought = bought * clicks()[LABEL].cast(pl.Int8) if needs else bought
    write(tmp_path / "log.csv", clicks().with_columns(bought))
    assert advice in dict(proposed(tmp_path).features.left_out)["conversion"]


def test_what_a_test_file_has_is_known_before(tmp_path: Path) -> None:
    stay = pl.Series("length_of_stay_minutes", np.random.default_rng(0).integers(1, 900, len(clicks())))
    frame = clicks().with_columns(stay, watched_share="price")
    write(tmp_path / "train.csv", frame)
    write(tmp_path / "test.csv", frame.drop(LABEL, "watched_share"))
    p = proposed(tmp_path)
    assert stay.name in inputs(p) and "watched_share" not in inputs(p)


def test_the_command_for_a_matrix_reads_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = np.random.default_rng(0).choice([0, 0, 0, 0, 1, 5], (60, 40))
    for name in ("train.ascii", "test.ascii"):
        np.savetxt(tmp_path / name, cells, "%d")
    with pytest.raises(NeedsAnswer) as found:
        proposed(tmp_path)
    command = re.search(r'python -c "(.*?)"; otherwise', str(found.value))
    assert command is not None and "train.ascii" in command[1]
    monkeypatch.chdir(tmp_path)
    exec(command[1], {})
    assert pl.read_csv("rows.csv").height == (cells > 0).sum()


def test_json_in_a_file_without_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"track\t{i}\t{1_400_000_000 + i}\t" + json.dumps({"name": f"n{i % 7}", "tags": i % 3}) for i in range(90)]
    (tmp_path / "tracks.idomaar").write_text("\n".join(rows) + "\n")
    with pytest.raises(NeedsAnswer, match="column_4 holds JSON objects as text") as found:
        proposed(tmp_path)
    command = re.search(r'python -c "(.*?)"; or keep', str(found.value))
    assert command is not None, found.value
    monkeypatch.chdir(tmp_path)
    exec(command[1], {})
    assert {"column_4_name", "column_4_tags"} < set(pl.read_parquet("rows.parquet").columns)


def test_counts_in_svmlight_are_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(3)} qid:{i // 9} 1:{rng.integers(4)} 2:{rng.integers(2)} 3:{rng.random():.3f}"
        for i in range(900)
    ]
    (tmp_path / "train.txt").write_text("\n".join(rows) + "\n")
    kinds = {c.name: c.kind.name for c in proposed(tmp_path).columns}
    assert (kinds["f1"], kinds["f2"], kinds["f3"]) == ("number", "category", "number")


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
def test_birth_dates_become_years(form: str, tmp_path: Path) -> None:
    born = pl.date_range(pl.date(1950, 1, 3), pl.date(2005, 1, 1), "97d", eager=True).dt.strftime(form)
    row = pl.int_range(len(clicks()), eager=True) % 60
    write(tmp_path / "log.csv", clicks().with_columns(geburtsdatum=born[row]))
    p = proposed(tmp_path)
    [year] = [f for f in p.features.dense if f.name == "geburtsdatum"]
    assert year.settings["column"] == "geburtsdatum_year" and "cyclic" not in year.settings
    assert p.features.derive["geburtsdatum_year"].startswith("YEAR(")


def test_ranges_are_no_lists() -> None:
    ranges = ["1,000 - 5,000", "10,000 - 50,000", "1,000,000 - 5,000,000", "50,000+", "5,000 - 9,000"]
    assert separator_of_values(pl.Series(ranges * 80)) is None
    assert separator_of_values(pl.Series(["a,b", "b,c,a", "c,a"] * 80)) == ","


# --- rows without a time, numbers of rows, files without rows -------------------------------------------------


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize(
    ("missing", "role", "asks"), [(0.004, "ts", 0), (0.01, "ts", 0), (0.09, "ts", 0), (0.3, "ts", 1), (0.7, None, 1)]
)
def test_missing_times_are_left_out_or_a_question(
    tmp_path: Path, missing: float, role: str | None, asks: int, label: bool
) -> None:
    frame = clicks().select("user", "item", "ts", *([LABEL] if label else []))
    every = pl.int_range(frame.height) * 7919 % frame.height < missing * frame.height
    frame = frame.with_columns(ts=pl.when(every).then(None).otherwise("ts")).sample(fraction=1, shuffle=True, seed=0)
    write(tmp_path / "log.csv", frame)
    p = proposed(tmp_path)
    text = document(p, "mine")
    assert (p.roles.time and p.roles.time.name) == role and "no column holds a time" not in text
    assert [q.answers for q in p.questions] == asks * [("time=ts", "time=null") if role else ("time=null", "time=ts")]
    assert (list(p.where) == ["ts IS NOT NULL"]) == (role is not None)
    if role:
        assert p.split.settings["by"] == ("time" if label else "leave_one_out")
    for time in ("ts", None):
        answered = proposed(tmp_path, time=time)
        assert not answered.questions and (answered.roles.time is not None) == (time is not None)


def test_times_of_other_events_are_no_question(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", LABEL)
    returned = pl.when(pl.int_range(frame.height) % 3 == 0).then(pl.col("ts") + 86_400)
    write(tmp_path / "log.csv", frame.with_columns(returned_at=returned))
    p = proposed(tmp_path)
    assert p.roles.time is not None and p.roles.time.name == "ts" and not p.where
    write(tmp_path / "log.csv", frame.with_columns(returned_at=returned).drop("ts"))
    assert not any(q.text.startswith("returned_at is empty") for q in proposed(tmp_path).questions)


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0", "Unnamed: 0.1", "", "index"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_the_index_of_pandas_is_no_feature(tmp_path: Path, name: str, suffix: str) -> None:
    """A sample of a larger frame keeps the numbers of its rows, shuffled and with gaps."""
    frame = clicks().select("user", "item", "ts", LABEL)
    rows = np.random.default_rng(0).permutation(3 * frame.height)[: frame.height]
    frame = frame.insert_column(0, pl.Series(name, rows))
    if suffix == "csv":
        frame.write_csv(tmp_path / "log.csv")
    elif name:
        frame.write_parquet(tmp_path / "log.parquet") if suffix == "parquet" else frame.write_ndjson(
            tmp_path / "log.jsonl"
        )
    else:
        pytest.skip("a column of Parquet or JSON has a name")
    p = proposed(tmp_path)
    left_out = {n: why for n, why in p.features.left_out if "index of pandas" in why}
    assert list(left_out) == [name or "column_1"]
    assert {(p.roles.user and p.roles.user.name), (p.roles.item and p.roles.item.name)} == {"user", "item"}


def test_the_index_that_pandas_names_may_be_the_user(tmp_path: Path) -> None:
    clicks().select("user", "item", "ts", LABEL).rename({"user": "index"}).write_csv(tmp_path / "log.csv")
    assert "index" in inputs(proposed(tmp_path))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrow", "json"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_without_rows_changes_nothing(tmp_path: Path, suffix: str, place: int) -> None:
    frame = clicks().select("user", "item", "ts", LABEL)
    parts = [frame.head(250), frame.tail(-250)]
    parts.insert(place, frame.clear())
    for i, part in enumerate(parts):
        file = tmp_path / f"part-{i}.{suffix}"
        if suffix == "parquet":
            part.write_parquet(file)
        elif suffix == "arrow":
            part.write_ipc(file)
        elif suffix == "json":
            part.write_json(file)
        else:
            file.write_bytes(
                gzip.compress(part.write_csv().encode()) if suffix == "csv.gz" else part.write_csv().encode()
            )
    p = proposed(tmp_path)
    assert not p.questions and p.unused == [(f"part-{place}.{suffix}", "it has no rows")]
    rest = [f"part-{i}.json" for i in range(3) if i != place]  # readers of rows refuse an array of nothing
    assert p.source["files"] == (rest if suffix == "json" else [f"*.{suffix}"]) and p.split.settings["by"] == "time"
    (tmp_path / f"part-{place}.{suffix}").unlink()
    whole = proposed(tmp_path)
    lines = [[x for x in document(q, "x").splitlines() if not x.startswith("source:")] for q in (whole, p)]
    assert lines[0] == lines[1][:-2]


def test_answers_keep_the_files_that_are_not_in_question(tmp_path: Path) -> None:
    frame = clicks().select("user", "item", "ts", LABEL)
    for name, part in {"a1": frame.head(250), "a2": frame.head(60), "a3": frame.tail(-250)}.items():
        write(tmp_path / f"{name}.csv", part)
    p = proposed(tmp_path)
    [question] = [q for q in p.questions if "too: which files" in q.text]
    assert question.guess == "all but a2.csv" and p.source["files"] == ["a1.csv", "a3.csv"]
    assert question.answers == (f"'files=[{tmp_path / 'a1.csv'},{tmp_path / 'a3.csv'}]'",)


@pytest.mark.parametrize("name", ["count", "len", "value", "index", "row", "rows", "literal", "x", "key", "*"])
@pytest.mark.parametrize("label", [LABEL, None])
def test_columns_may_have_the_names_that_polars_gives(tmp_path: Path, name: str, label: str | None) -> None:
    frame = clicks().select("user", "item", "ts", "city", *([label] if label else []))
    for column in ("city", "user"):
        frame.rename({column: name}).write_csv(tmp_path / "log.csv")
        answers = {"user": "column_1" if name == "*" else name} if column == "user" else {}
        assert proposed(tmp_path, **answers).columns


def test_keys_of_later_json_lines_are_optional(tmp_path: Path) -> None:
    rows = [
        r | ({"coupon": f"c{i % 3}", "at": {"page": i % 2}} if i > 300 else {})
        for i, r in enumerate(clicks().to_dicts())
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert proposed(tmp_path).source["optional_columns"] == ["coupon", "at.page"]


def test_a_last_line_that_was_cut_within_quotes_is_one_bad_row(tmp_path: Path) -> None:
    text = clicks().select("user", "item", "tags", LABEL).write_csv(quote_style="non_numeric")
    (tmp_path / "log.csv").write_text(text + 'u1,i1,"a, b')
    p = proposed(tmp_path)
    assert p.rows >= 400 and not p.questions


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf", b" \n", b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_files_of_nothing_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError):
        proposed(tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.04, 0.08, 0.2])
@pytest.mark.parametrize("kinds", [1, 50])
@pytest.mark.parametrize("column", ["at", "price"])
def test_columns_that_mostly_hold_times_or_numbers(tmp_path: Path, share: float, kinds: int, column: str) -> None:
    """A few other texts stand for missing values, of however many rows; many are a question, never 'no time'."""
    frame = clicks(rows=2000).select("user", "item", "ts", "price", LABEL)
    frame = frame.select(
        "user", "item", at=pl.from_epoch("ts").dt.strftime("%Y-%m-%d %H:%M"), price="price", clicked=LABEL
    )
    odd = pl.int_range(frame.height) * 7919 % frame.height < share * frame.height
    other = pl.lit("unknown x") + (pl.int_range(frame.height) * 7919 % kinds).cast(pl.String)
    write(
        tmp_path / "log.csv",
        frame.with_columns(pl.when(odd).then(other).otherwise(pl.col(column).cast(pl.String)).alias(column)),
    )
    p = proposed(tmp_path)
    [found] = [c for c in p.columns if c.name == column]
    text = document(p, "mine")
    if kinds == 1:
        assert found.kind.name == {"at": "time", "price": "number"}[column] and found.nulls == ["unknown x0"]
        assert len(p.questions) == (column == "at" and share > 0.1)
    else:
        assert any(q.text.startswith(f"what does {column} hold?") for q in p.questions)
    assert "no column holds a time" not in text


def test_codes_of_which_some_have_letters_are_no_question(tmp_path: Path) -> None:
    frame = clicks(rows=2000).select("user", "item", "ts", LABEL)
    code = pl.int_range(frame.height) * 7919 % 300 + 20_000
    letters = pl.when(code % 9 == 0).then(code.cast(pl.String) + "B").otherwise(code.cast(pl.String))
    write(tmp_path / "log.csv", frame.with_columns(stockcode=letters))
    assert not proposed(tmp_path).questions


@pytest.mark.parametrize("missing", [0.4, 0.6, 0.9])
def test_users_that_most_rows_lack_are_named_in_the_answer(tmp_path: Path, missing: float) -> None:
    frame = clicks().select("user", "item", "ts")
    lacking = pl.int_range(frame.height) * 7919 % frame.height < missing * frame.height
    write(tmp_path / "log.csv", frame.with_columns(user=pl.when(lacking).then(None).otherwise("user")))
    if missing < 0.5:
        assert list(proposed(tmp_path).where) == ["user IS NOT NULL"]
        return
    with pytest.raises(NeedsAnswer, match="label=null with user=user item=item"):
        proposed(tmp_path)
    assert list(proposed(tmp_path, label=None, user="user", item="item").where) == ["user IS NOT NULL"]
