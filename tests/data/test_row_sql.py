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


ROW_WISE = r"""
x
-x + .5e1
x IN (1, 2)
s in ('a','it''s')
CAST("Order" AS BIGINT) % 7 = 2
x BETWEEN 1 AND (2 + 1)
CASE WHEN x > 1 THEN 'a' WHEN (x = 1) THEN NULL ELSE (s) END
s LIKE ('a%') AND NOT (x = 1)
l[1] * 2
EXTRACT(year FROM DATE('2020-01-01'))
TRIM(LEADING 'x' FROM s)
SUBSTRING(s FROM 1 FOR 2) || s
x IS DISTINCT FROM 3
x::DOUBLE
LPAD(TRIM(s), 3, '0')
COALESCE(TRY_CAST(s AS DOUBLE), 0)
REGEXP_LIKE(s, '\w+') or s = '\'
s ~ '^a'
CAST(x AS DECIMAL(9, 2)) > 1
x <=> 2
date'2020-01-01' < DATE('2021-01-01')
"""


@pytest.mark.parametrize("sql", [*ROW_WISE.strip().splitlines(), "x -\n1"])
def test_rows_alone(sql: str) -> None:
    expr, _ = parse_sql(sql, "key")
    whole = FRAME.select(expr.alias("r"))["r"]
    rows = [FRAME[i].select(expr.alias("r"))["r"][0] for i in range(len(FRAME))]
    assert len(whole) in (1, 3) and (whole.to_list() if len(whole) == 3 else 3 * whole.to_list()) == rows


READS = "read_csv('{file}')"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("LENGTH(LPAD(s, 2000000000, 'x')) > 0", "the second argument of LPAD, must be a number up to 10,000"),
        ("rpad(LPAD(s, 3, 'x'), x, 'y')", "the second argument of RPAD, must be a number"),
        (f"x IN (SELECT a FROM {READS})", "at character 7: a query has no place"),
        (f"x IN (FROM {READS})", "at character 7: a query has no place"),
        (f"x IN (\u00a0\nwItH a AS (SELECT 1) SELECT * FROM {READS})", "a query has no place"),
        (f"x = ANY(SELECT a FROM {READS})", "ANY is not one of its functions"),
        (f"EXISTS (SELECT 1 FROM {READS})", "EXISTS is not one of its functions"),
        (f"CASE WHEN x = 1 THEN (SELECT 1 FROM {READS}) END", "a query has no place"),
        ("x IN (VALUES (1))", "a query has no place"),
        (f"x IN (/*'*/SELECT a FROM {READS})/*'*/", "at character 7: '/*' is not part of an expression"),
        (f"x = 1 --' \n or x IN (SELECT a FROM {READS}) --'", "'--' is not part of an expression"),
        (f"`'` = x IN (SELECT a FROM {READS}) --'", "in double quotes"),
        (f"q'(')' = s OR x IN (SELECT a FROM {READS}) --'", "without the prefix q"),
        (f"E'\\'' = s OR x IN (SELECT a FROM {READS}) --'", "without the prefix E"),
        (f"$$'$$ = s OR x IN (SELECT a FROM {READS}) --'", "'$$' is not part of an expression"),
        ("x > AVG(x)", "AVG is not one of its functions"),
        ("COUNT(*) > 1", "one row at a time"),
        ("x > 1 OVER (ORDER BY x)", "OVER is not one of its functions"),
        ("CURRENT_TIMESTAMP", "would change with the time"),
        ("NOW()", "NOW is not one of its functions"),
        ("lenght(s)", "did you mean length?"),
        ("x; x", "'; ' is not part of an expression"),
        ("s = 'a", "at character 5: the text that begins here has no end"),
        ("(" * 5000 + "x" + ")" * 5000, "key: "),
        ("x" + " + 1" * 100_000, "has 100,001 operators and words, more than 1000; shorten it"),
        ("NOT " * 5000 + "x = 1", "operators and words"),
        ("\ud800", "is not part of an expression"),
    ],
)
def test_refused(sql: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        parse_sql(sql.replace("{file}", str(tmp_path / "none.csv")), "key")
    assert why in str(caught.value) and "No such file" not in str(caught.value)


FRAGMENTS = r"""' " '' \ -- /* */ ` $$ $a$ # x ( ) , IN q E U& N r b = EXISTS ANY ARRAY LATERAL SELECT FROM VALUES TABLE a | [
    ] { } １ .""".split()
READ = "FROM read_csv('/none/of/this.csv')"
FRAGMENTS += [*"\n \u2028\x1c\ufeff", "WITH a AS", "x IN ", READ, f"(SELECT a {READ})", f"({READ})"]


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
