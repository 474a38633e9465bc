"""Lines of slot:value fields, against a loop."""

from pathlib import Path

import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE
from recsys.data.raw.formats import FORMATS, column_names, read
from recsys.data.raw.slots import HEAD_LINES
from recsys.schema.source_schema import SourceConfig

SLOTS = ("user", "item", "210", "7", "dense_feature")
FIELDS = st.lists(st.tuples(st.sampled_from(SLOTS), st.sampled_from(["0", "1", "77", "0.5", "x-y"])), max_size=8)


def rows(source: SourceConfig, file: Path) -> pl.DataFrame:
    blocks = [b for part in FORMATS[source.format].ranges(source, file) for b in read(source, file, [], part)]
    assert not [b.bad for b in blocks if b.bad]
    return pl.concat([b.frame for b in blocks])


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=20), st.sampled_from([" ", ",", ";"]), st.integers(0, 3))
def test_as_a_loop_reads_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[tuple[str, str]]], separator: str, leading: int
) -> None:
    first = [str(i) for i in range(leading)]
    every = [[("user", "1")], *lines]  # so that one slot is known
    file = tmp_path_factory.mktemp("slots") / "part-0"
    file.write_text("".join(separator.join([*first, *(f"{k}:{v}" for k, v in row)]) + "\n" for row in every))
    source = SourceConfig(format="slots", separator=separator)
    if not leading:
        every = [row for row in every if row]  # a line without fields is blank
    found = rows(source, file)
    names = [f"field_{i}" for i in range(1, leading + 1)]
    assert found[LINE].n_unique() == len(every)
    for row, own in zip(found.iter_rows(named=True), every, strict=True):
        expected = dict(zip(names, first, strict=True))
        for k, v in own:
            column = f"f{k}" if k.isdigit() else k
            expected[column] = f"{expected[column]}{separator}{v}" if column in expected else v
        assert {k: v for k, v in row.items() if v is not None and k != LINE} == expected


def test_bad_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    source = SourceConfig(format="slots", separator=" ", columns=["label"])
    lines = ["1 u:1 i:2 i:3", "0 u:2", "u:3 i:1", "1 u:1 x", *["0 u:1"] * HEAD_LINES, "1 late:9"]
    file.write_text("\n".join(lines) + "\n")
    assert column_names(source, file) == ["label", "u", "i"]
    [block] = read(source, file, [])
    assert block.frame.head(2).select("label", "u", "i").rows() == [("1", "1", "2 3"), ("0", "2", None)]
    assert [(b.line, b.reason) for b in block.bad] == [
        (3, "it begins with fewer than 1 fields without a slot"),
        (4, "a field is not slot:value"),
        (len(lines), "slot late is not in the first lines of the file"),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a b\nc d\n", [], "no line holds slot:value"),
        ("1 0 u:1\n1 0 u:2\n", ["label"], "names 1 fields, and the lines begin with 2 without a slot; name these"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, columns: list[str], message: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UserError, match=message):
        column_names(SourceConfig(format="slots", separator=" ", columns=columns), tmp_path / "a")
