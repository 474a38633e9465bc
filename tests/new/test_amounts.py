"""Labels that are amounts, such as sales and prices, are found by their names and by files of test rows."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from file_shapes import lines

from recsys.base.errors import UserError
from recsys.new.choose_label import choose
from recsys.new.find_kinds import columns_of
from recsys.new.propose import propose

RNG = np.random.default_rng(0)


def rossmann(rows: int = 1200) -> pl.DataFrame:
    opened = RNG.random(rows) < 0.85
    sales = np.where(opened, RNG.lognormal(8.5, 0.9, rows), 0).astype(int)
    return pl.DataFrame(
        {
            "Store": [1 + i % 60 for i in range(rows)],
            "DayOfWeek": [1 + i // 60 % 7 for i in range(rows)],
            "Date": [f"2015-07-{31 - i // 60:02d}" for i in range(rows)],
            "Sales": sales,
            "Customers": sales // 9 + RNG.integers(0, 90, rows) * opened,
            "Open": opened.astype(int),
            "Promo": RNG.integers(0, 2, rows),
            "StateHoliday": RNG.choice(["0", "a", "b"], rows),
            "SchoolHoliday": RNG.integers(0, 2, rows),
        }
    )


@pytest.mark.parametrize("tested", [False, True])
def test_sales(tmp_path: Path, *, tested: bool) -> None:
    (tmp_path / "train.csv").write_text(lines(rossmann()))
    if tested:
        test = rossmann(300).drop("Sales", "Customers").with_row_index("Id")
        (tmp_path / "test.csv").write_text(lines(test))
    p = propose([str(tmp_path)])
    assert p.label is not None
    assert p.label.settings == {"column": "Sales", "kind": "regression", "log": True}
    assert ("Customers" in dict(p.features.left_out)) == tested
    assert p.source["files"] == ["train.csv"]


def test_the_price_of_a_house(tmp_path: Path) -> None:
    rows = 400
    frame = pl.DataFrame(
        {
            "Id": range(1, rows + 1),
            "Street": RNG.choice(["Pave", "Grvl"], rows),
            "Air": RNG.choice(["Y", "N"], rows),
            "LotArea": RNG.integers(1000, 20000, rows),
            "SalePrice": RNG.integers(50, 600, rows) * 1000,
        }
    )
    (tmp_path / "a.csv").write_text(lines(frame))
    p = propose([str(tmp_path)])
    assert p.label is not None and p.label.settings == {"column": "SalePrice", "kind": "regression"}


def test_the_column_that_the_test_file_lacks(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": RNG.normal(size=300), "b": RNG.normal(size=300), "zeta": RNG.normal(size=300)})
    (tmp_path / "train.csv").write_text(lines(frame))
    with pytest.raises(UserError, match=r"label=null with user=NAME item=NAME .columns: a, b, zeta"):
        propose([str(tmp_path)])
    (tmp_path / "test.csv").write_text(lines(frame.drop("zeta")))
    p = propose([str(tmp_path)])
    assert p.label is not None and p.label.column.name == "zeta" and "test file lacks" in p.label.reason


def test_a_price_is_the_label_only_if_nothing_else_is() -> None:
    frame = pl.DataFrame({"price": RNG.normal(size=200), "x": RNG.normal(size=200), "vip": RNG.integers(0, 2, 200)})
    for names, expected in ((["price", "x", "vip"], "vip"), (["price", "x"], "price")):
        made = choose(columns_of(frame.select(names))[0], "auto", retrieval=False)
        assert made is not None and made.column.name == expected


@pytest.mark.parametrize(("number", "shown"), [(30, "x29"), (500, "..., x494")])
def test_an_error_names_the_last_columns_too(tmp_path: Path, number: int, shown: str) -> None:
    frame = pl.DataFrame({f"x{i}": RNG.normal(size=50) for i in range(number)})
    (tmp_path / "a.csv").write_text(lines(frame))
    with pytest.raises(UserError, match="type label=NAME") as e:
        propose([str(tmp_path)])
    assert shown in str(e.value) and len(str(e.value)) < 700
