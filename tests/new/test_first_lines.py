"""First lines that are no rows of the table: titles, Excel's separator, comments."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from file_shapes import clicks, lines

from recsys.base.errors import UserError
from recsys.new.find_dialect import dialect_of
from recsys.new.find_layout import layout_of
from recsys.new.propose import propose
from recsys.new.sample import read_sample

RNG = np.random.default_rng(0)


def adult(rows: int, end: str) -> str:
    """Rows as in the census data of UCI: no header, labels at the end."""
    made = [
        f"{RNG.integers(17, 90)}, {RNG.choice(['Private', 'State-gov', '?'])}, {RNG.integers(10_000, 900_000)}, "
        f"{RNG.choice(['Male', 'Female'])}, {RNG.integers(1, 99)}, {RNG.choice(['<=50K', '>50K'], p=[0.75, 0.25])}{end}"
        for _ in range(rows)
    ]
    return "\n".join(made) + "\n"


def test_a_folder_of_adult(tmp_path: Path) -> None:
    (tmp_path / "adult.data").write_text(adult(600, ""))
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + adult(300, "."))
    p = propose([str(tmp_path)])
    assert p.source["comment"] == "|" and p.source["separator"] == ","
    assert p.label is not None and p.label.settings == {"column": "column_6", "positive": [">50K", ">50K."]}
    assert p.split.settings == {"by": "files", "train_files": ["adult.data"], "test_files": ["adult.test"]}
    assert 0.15 < p.label.share < 0.35 and not p.unused


def test_the_first_line_of_excel(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("sep=;\n" + lines(clicks(), ";"))
    layout = layout_of(file)
    assert layout.columns == clicks().columns and layout.comment is None
    assert read_sample([file], layout).frame.height == clicks().height


@pytest.mark.parametrize("title", ["Report of May", "Report, made in May"])
def test_a_title_is_said(tmp_path: Path, title: str) -> None:
    (tmp_path / "a.csv").write_text(f"{title}\n" + lines(clicks()))
    with pytest.raises(UserError, match="of the 8 fields of all other lines; remove it, or put # before it"):
        propose([str(tmp_path)])
    (tmp_path / "a.csv").write_text(f"# {title}\n" + lines(clicks()))
    assert propose([str(tmp_path)]).source["comment"] == "#"


def test_a_short_header_is_no_title() -> None:
    d = dialect_of(["a,b,c", *(f"{i},{i % 3},x,{i * 7 % 5}" for i in range(30))])
    assert d.comment is None and d.width == 4


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (",,price,click", ["column_1", "column_2", "price", "click"]),
        ("user,,,click", ["user", "column_2", "column_3", "click"]),
        (",user,price,click", ["column_1", "user", "price", "click"]),
    ],
)
def test_columns_without_a_name_get_one(header: str, columns: list[str], tmp_path: Path) -> None:
    """As pandas writes an index of one column, or of several."""
    rows = [f"{i},u{i % 7},{i % 31 / 10},{i % 2}" for i in range(300)]
    file = tmp_path / "a.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    layout = layout_of(file)
    assert layout.header and layout.columns == columns and layout.renamed
    sample = read_sample([file], layout).frame
    assert sample.columns == columns and sample.height == 300 and sample["click"][0] == "0"


@pytest.mark.parametrize("first", ["u3,,,", "u3,,,1", ",,NA,NA", "u3,,?,1"])
def test_a_row_with_gaps_is_no_header(first: str) -> None:
    assert not dialect_of([first, *(f"u{i % 7},{i},{i % 31 / 10},{i % 2}" for i in range(300))]).header


def test_messages_of_libraries_do_not_leak(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1" + b"x" * 200)
    with pytest.raises(UserError) as e:
        layout_of(file)
    assert str(e.value) == f"{file}: is damaged, or not what its first bytes say; check it, or leave it out"


def test_a_cut_archive_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(lines(clicks()).encode())[:60] + b"x" * 2000)
    with pytest.raises(UserError) as e:
        layout_of(file)
    assert str(e.value) == f"{file}: cannot be read (it is damaged, or not all of it is there)"


def test_headings_are_refused_with_the_command_that_writes_rows(tmp_path: Path) -> None:
    """Netflix's combined_data_1.txt."""
    films = "".join(
        f"{m}:\n" + "".join(f"{1488 + i},{i % 5 + 1},2005-09-0{i % 9 + 1}\n" for i in range(9)) for m in "123"
    )
    (tmp_path / "a.txt").write_text(films)
    with pytest.raises(
        UserError, match=r"lines such as 1: hold a value of all lines below them; .* awk -F: '.*' FILES"
    ):
        propose([str(tmp_path)])


def test_a_compressed_file_without_its_suffix_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(lines(clicks()).encode()))
    with pytest.raises(UserError, match=r"a\.csv: holds gzip; rename it to \.gz"):
        propose([str(tmp_path)])
