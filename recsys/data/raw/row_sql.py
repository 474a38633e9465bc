"""SQL expressions over the columns of one row: the only SQL that a config or a file from elsewhere can run in Polars.

Polars reads files and sends requests while it parses `x IN (SELECT ... FROM read_csv('...'))`. So a text is compared
with the grammar of this module before Polars sees it: columns, numbers, texts in single quotes, operators, CASE, CAST
and the functions in FUNCTIONS. Forms that parsers read differently, such as comments, backticks and texts with a
prefix (E'...', $$...$$), are refused, so that Polars finds no token that was not checked.
"""

import difflib
import re
from functools import lru_cache
from itertools import pairwise

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import one_line

FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # of an expression
_FUNCTIONS = """
abs acos acosd asin asind atan atan2 atan2d atand cbrt ceil ceiling cos cosd cot cotd degrees div exp floor ln log
log10 log1p log2 mod pi pow power radians round sign sin sind sqrt tan tand trunc
bit_and bit_count bit_not bit_or bit_xor coalesce greatest if ifnull least nullif
cast try_cast date date_part date_trunc datetime day dayofmonth dayofweek dayofyear extract hour minute month
quarter second strftime strptime time timestamp week year
bit_length char_length character_length concat concat_ws ends_with initcap left length lower lpad ltrim
normalize octet_length position regexp_like regexp_replace replace reverse right rpad rtrim split_part
starts_with string_to_array strpos substr substring trim upper
array_contains array_dot_product array_get array_inner_product array_length array_lower array_mean
array_reverse array_sum array_to_string array_unique array_upper
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
# words other than functions that an opening parenthesis may follow
_BEFORE = """
and between by char decimal distinct else end escape for from ilike in is like not numeric or regexp rlike then varchar
when
"""
BEFORE = frozenset(_BEFORE.split())
QUERIES = ("select", "with", "values", "from", "table", "insert", "update", "delete", "merge")  # begin a query
NOW = ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp")
MAX_PADDED = 10_000  # characters to which LPAD and RPAD lengthen a text
PADS = ("lpad", "rpad")
MAX_PARTS = 1000  # operators and words: Polars reads them recursively, and ends the process if there are too many
TOKEN = re.compile(
    r"""\s+
    | (?P<text>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")+")
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator>::|\|\||->>?|!~\*?|~\*?|<=>|<>|!=|<=|>=|==|-(?!-)|/(?!\*)|[+*%=<>&|^(),.\[\]])""",
    re.VERBOSE,
)


@lru_cache
def parse_sql(sql: str, key: str) -> tuple[pl.Expr, list[str]]:
    """Return the expression and the columns that it reads.

    Args:
        key: the config key that holds it, for messages.

    Raises:
        UserError: the text is not an expression of this grammar.
    """
    check_sql(sql, key)
    try:
        expr = pl.sql_expr(sql)
    except FAILURES as e:
        unsupported = re.search(r"unsupported function '(\w+)'", str(e))
        hint = f"; {unsupported[1]} is a word of SQL: write it in double quotes to name a column" if unsupported else ""
        raise UserError(f"{key}: {sql!r}: {one_line(e)}{hint}") from e
    return expr, expr.meta.root_names()


def check_sql(sql: str, key: str) -> None:
    """Raise UserError, with the place of the mistake, for a text that is not an expression of this grammar."""
    at, before, parts = 0, "", 0
    while at < len(sql):
        token = TOKEN.match(sql, at)
        if why := _unknown(sql[at:]) if token is None else _refused(token, before, sql[token.end() : token.end() + 1]):
            raise UserError(f"{key}: {sql!r}: cannot be read at character {at + 1}: {why}")
        assert token is not None
        before = before if token[0].isspace() else token[0].lower()
        is_call = token["word"] and sql[token.end() :].lstrip()[:1] == "("
        if is_call and (name := token[0]).lower() not in FUNCTIONS | BEFORE:
            near = difflib.get_close_matches(name.lower(), FUNCTIONS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "docs/how_to/data/keys.md lists them"
            why = f"an expression must read one row at a time, and {name} is not one of its functions"
            raise UserError(f"{key}: {sql!r}: {why}; {hint}")
        at = token.end()
        parts += bool(token["word"] or token["operator"] not in (None, ",", "(", ")"))
    _check_pads(sql, key)
    if parts > MAX_PARTS:
        raise UserError(f"{key}: {sql[:40]!r}...: has {parts:,} operators and words, more than {MAX_PARTS}; shorten it")


def _check_pads(sql: str, key: str) -> None:
    """Raise UserError for a call of LPAD or RPAD whose length could fill the memory."""
    words = [t for t in (m[0].lower() for m in TOKEN.finditer(sql)) if not t.isspace()]
    for i, (word, after) in enumerate(pairwise(words)):
        if word not in PADS or after != "(":
            continue
        depth, arguments = 0, list[list[str]]([[]])
        for mark in words[i + 1 :]:
            depth += (mark in "([") - (mark in ")]")
            if depth == 0:
                break
            if mark == "," and depth == 1:
                arguments.append([])
            elif depth > 1 or mark != "(":
                arguments[-1].append(mark)
        length = arguments[1] if len(arguments) > 1 else []
        if len(length) != 1 or not length[0].isdecimal() or int(length[0]) > MAX_PADDED:
            hint = f"the length, the second argument of {word.upper()}, must be a number up to {MAX_PADDED:,}"
            raise UserError(f"{key}: {sql[:80]!r}: {hint}")


def _unknown(rest: str) -> str:
    """Return the reason why the rest of an expression does not begin with a token."""
    if rest[0] in "'\"":
        return "the text that begins here has no end; write a single quote in a text twice"
    return f"{rest[:2]!r} is not part of an expression over the columns of one row, whose names may be in double quotes"


def _refused(token: re.Match[str], before: str, after: str) -> str | None:
    """Return why a token must not follow `before`, or precede the character `after`; None if it may."""
    word = (token["word"] or "").lower()
    if word and after in ("'", '"') and len(word) < 3 and word not in ("in", "or", "is", "as"):
        return f"write the text or name without the prefix {token[0]}"
    if word == "select" or (before == "(" and word in QUERIES):
        return f'a query has no place in an expression; to name a column, write "{token[0]}" in double quotes'
    if word in NOW:
        return f'the value would change with the time; to name a column, write "{token[0]}" in double quotes'
    if word == "over" and before == ")":
        return "an expression must read one row at a time; remove OVER"
    return None
