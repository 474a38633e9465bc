"""Recognise numbers with a unit or a currency, such as 2.233,58 € and 45,5 %."""

import re

import polars as pl

from recsys.new.statistics import mean

SPACES = " \u00a0\u202f"  # between thousands
AMOUNT = rf"[+-]?\d[\d.,]*(?:[{SPACES}]\d{{3}}(?:[.,]\d+)?)*"
CURRENCY = "€|\\$|£|¥|₹|EUR|USD|GBP|CHF|JPY|CNY|INR|zł|PLN|kr|SEK|NOK|DKK|Kč|₺|TL|₽|руб|R\\$|₩|元|円"
MEASURE = "%|‰|°C|kg|g|km|m|cm|mm|m²|l|ml|h|min|s|ms|kB|KB|MB|GB"
UNIT = rf"^\s*((?:{CURRENCY})\s?)?{AMOUNT}(\s?(?:{CURRENCY}|{MEASURE}))?\s*$"
ENOUGH = 0.995  # share of values that are such numbers


def number_sql(values: pl.Series) -> tuple[pl.Series, str] | None:
    """Return the numbers, and the SQL that makes them of the column {}; None if the text holds something else.

    All values have the same unit, before or after the number.
    """
    known = values.drop_nulls()
    if not known.len() or mean(known.head(200).str.contains(UNIT)) < ENOUGH or mean(known.str.contains(UNIT)) < ENOUGH:
        return None
    units = known.str.replace(AMOUNT, "", literal=False).str.strip_chars().unique().to_list()
    if len(units) != 1 or not units[0] or len(units[0].split()) != 1 or re.search(r"\d", units[0]):
        return None
    amounts = known.str.extract(f"({AMOUNT})")
    spaces = [(s, "") for s in SPACES if amounts.str.contains(s, literal=True).any()]
    amounts = amounts.str.replace_all(f"[{SPACES}]", "")
    if (marks := _marks(amounts)) is None:
        return None
    sql = "{}"
    for old, new in ((units[0], ""), *spaces, *marks):
        sql = f"REPLACE({sql}, '{_quoted(old)}', '{new}')"
    sql = f"TRY_CAST(TRIM({sql}) AS DOUBLE)"
    numbers = values.to_frame("x").select(pl.sql_expr(sql.format("x"))).to_series()
    return (numbers, sql) if numbers.drop_nulls().len() >= ENOUGH * known.len() else None


def _marks(amounts: pl.Series) -> list[tuple[str, str]] | None:
    """Return the replacements that make numbers of amounts, None if points may divide thousands.

    Marks between thousands are removed, and a decimal comma becomes a point.
    """
    comma, point = (amounts.str.contains(mark, literal=True).any() for mark in (",", "."))
    if not comma:
        groups = point and amounts.str.contains(r"\.\d{3}$|\.\d{3}\.").all()
        return None if groups else []
    if not point:
        return [(",", "")] if amounts.str.contains(r"^[+-]?\d{1,3}(,\d{3})*$").all() else [(",", ".")]
    last_is_comma = mean(amounts.str.contains(r"\.\d{3}.*,|^[^.]*,\d+$|^[^,]*$")) > ENOUGH
    return [(".", ""), (",", ".")] if last_is_comma else [(",", "")]


def _quoted(text: str) -> str:
    return text.replace("'", "''").replace("{", "{{").replace("}", "}}")
