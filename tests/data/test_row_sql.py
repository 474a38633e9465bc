"""SQL over the columns of one row: what is allowed, and what Polars would read files or other rows for."""

from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.raw.derive import add_derived_column
from recsys.data.raw.row_sql import FUNCTIONS, parse_sql

FRAME = pl.DataFrame({"x": [1, 2, 3], "s": ["a", "b", "c"], "l": [[1], [2], [3]], "Order": [1, 2, 3]})


@pytest.mark.parametrize(
    "sql",
    [
        "x", "-x + .5e1", "x IN (1, 2)", "s in ('a','it''s')", 'CAST("Order" AS BIGINT) % 7 = 2', "x BETWEEN 1 AND (2 + 1)",
        "CASE WHEN x > 1 THEN 'a' WHEN (x = 1) THEN NULL ELSE (s) END", "s LIKE ('a%') AND NOT (x = 1)", "l[1] * 2",
        "EXTRACT(year FROM DATE('2020-01-01'))", "TRIM(LEADING 'x' FROM s)", "SUBSTRING(s FROM 1 FOR 2) || s",
        "x IS DISTINCT FROM 3", "x::DOUBLE", "LPAD(TRIM(s), 3, '0')", "COALESCE(TRY_CAST(s AS DOUBLE), 0)", "REGEXP_LIKE(s, '\\w+') or s = '\\'", "s ~ '^a'",
        "CAST(x AS DECIMAL(9, 2)) > 1", "x -\n1", "x <=> 2", "date'2020-01-01' < DATE('2021-01-01')",
    ],
)  # fmt: skip
def test_rows_alone(sql: str) -> None:
    expr, _ = parse_sql(sql, "key")
    whole = FRAME.select(expr.alias("r"))["r"]
    rows = [FRAME[i].select(expr.alias("r"))["r"][0] for i in range(len(FRAME))]
    assert len(whole) in (1, 3) and (whole.to_list() if len(whole) == 3 else 3 * whole.to_list()) == rows


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("LENGTH(LPAD(s, 2000000000, 'x')) > 0", "the length, the second argument of LPAD, must be a number up to 10,000"),
        ("rpad(LPAD(s, 3, 'x'), x, 'y')", "the second argument of RPAD, must be a number"),
        ("x IN (SELECT a FROM read_csv('{file}'))", "at character 7: a query has no place"),
        ("x IN (FROM read_csv('{file}'))", "at character 7: a query has no place"),
        ("x IN (\u00a0\nwItH a AS (SELECT 1) SELECT * FROM read_csv('{file}'))", "a query has no place"),
        ("x = ANY(SELECT a FROM read_csv('{file}'))", "ANY is not one of its functions"),
        ("EXISTS (SELECT 1 FROM read_csv('{file}'))", "EXISTS is not one of its functions"),
        ("CASE WHEN x = 1 THEN (SELECT 1 FROM read_csv('{file}')) END", "a query has no place"),
        ("x IN (VALUES (1))", "a query has no place"),
        ("x IN (/*'*/SELECT a FROM read_csv('{file}'))/*'*/", "at character 7: an expression has no comments"),
        ("x = 1 --' \n or x IN (SELECT a FROM read_csv('{file}')) --'", "an expression has no comments"),
        ("`'` = x IN (SELECT a FROM read_csv('{file}')) --'", "in double quotes"),
        ("q'(')' = s OR x IN (SELECT a FROM read_csv('{file}')) --'", "without the prefix q"),
        ("E'\\'' = s OR x IN (SELECT a FROM read_csv('{file}')) --'", "without the prefix E"),
        ("$$'$$ = s OR x IN (SELECT a FROM read_csv('{file}')) --'", "'$' is not part of an expression"),
        ("SUM(x)", "SUM is not one of its functions"),
        ("x > AVG(x)", "AVG is not one of its functions"),
        ("COUNT(*) > 1", "one row at a time"),
        ("x > 1 OVER (ORDER BY x)", "OVER is not one of its functions"),
        ("ROW_NUMBER() = 1", "ROW_NUMBER is not one of its functions"),
        ("UNNEST(l)", "UNNEST is not one of its functions"),
        ("CURRENT_TIMESTAMP", "would change with the time"),
        ("current_date > DATE('2020-01-01')", "would change with the time"),
        ("NOW()", "NOW is not one of its functions"),
        ("lenght(s)", "did you mean length?"),
        ("x; x", "';' is not part of an expression"),
        ("s = 'a", "at character 5: the text that begins here has no end"),
        ("(" * 5000 + "x" + ")" * 5000, "key: "),
        ("x" + " + 1" * 100_000, "has 100,001 operators and words, more than 1000; shorten it"),
        ("NOT " * 5000 + "x = 1", "operators and words"),
        ("CASE WHEN x = 1 THEN " * 300 + "1" + " END" * 300, "operators and words"),
        ("\ud800", "is not part of an expression"),
    ],
)  # fmt: skip
def test_refused(sql: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        parse_sql(sql.replace("{file}", str(tmp_path / "none.csv")), "key")
    assert why in str(caught.value) and "No such file" not in str(caught.value)


FRAGMENTS = ["'", '"', "''", "\\", "--", "/*", "*/", "`", "$$", "$a$", "#", "\n", " ", "x", "(", ")", ",", "IN", "q", "E", "U&", "N", "r",
    "b", "=", "EXISTS", "ANY", "ARRAY", "LATERAL", "SELECT", "FROM", "WITH a AS", "VALUES", "TABLE", "a", "|", "[", "]", "{", "}",
    "FROM read_csv('/none/of/this.csv')", "(SELECT a FROM read_csv('/none/of/this.csv'))", "(FROM read_csv('/none/of/this.csv'))",
    "\u2028", "\x1c", "\ufeff", "１", ".", "x IN "]  # fmt: skip


@settings(max_examples=examples(1500), deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14))
@example(["x", "--", "'", "\n", "=", "(SELECT a FROM read_csv('/none/of/this.csv'))", "--", "'"])
def test_polars_reads_no_file_whatever_the_text(parts: list[str]) -> None:
    """Polars names the file that it cannot find, if it looks for it."""
    with suppress(UserError):  # and not FileNotFoundError
        parse_sql("".join(parts), "key")


def test_the_example_reads_a_file_if_nothing_is_checked() -> None:
    with pytest.raises(FileNotFoundError):
        pl.sql_expr("x IN (SELECT a FROM read_csv('/none/of/this.csv'))")


def test_polars_knows_the_functions() -> None:
    forms = {
        "cast": "cast(s as int)",
        "try_cast": "try_cast(s as int)",
        "position": "position('a' in s)",
        "extract": "extract(day from s)",
    }
    for name in FUNCTIONS:
        try:
            parse_sql(forms.get(name, f"{name}(s)"), "key")
        except UserError as e:  # of the number or the kind of its arguments
            unknown = "unsupported function" in str(e)
            assert not unknown, name


def test_a_panic_of_polars_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^data\.derive\.z: 'CAST\(x AS DECIMAL\(99, 3\)\)': "):
        add_derived_column("z", "CAST(x AS DECIMAL(99, 3))", FRAME)


def test_docs_list_the_functions() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how_to" / "data" / "keys.md").read_text()
    listed = text.partition("## SQL expressions")[2].partition("\n## ")[0].split("```")[1]
    assert set(listed.removeprefix("text").lower().split()) == FUNCTIONS
