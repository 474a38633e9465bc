"""Check the parts of a data config that say how raw files are read."""

import codecs
import re

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.raw.databases import TABLES, Sql
from recsys.data.raw.dialect import SPACES
from recsys.data.raw.formats import FORMATS, SIDE_FORMATS
from recsys.data.raw.nested import exploded_paths
from recsys.data.raw.raw_format import repeated
from recsys.schema.source_schema import SourceConfig, TextConfig

# A run's config may come from elsewhere, so its query must not write.
READS = re.compile(r"\s*\(*\s*(SELECT|WITH|FROM|VALUES)\b[^;]*;?\s*", re.IGNORECASE)


def check_source(data: ResolvedData) -> None:
    """Check `source`, its joins and the text options of `items`.

    Raises:
        UserError: the config has a mistake.
    """
    key, source = f"{data.key}.source", data.source
    names = [*(n for n, f in FORMATS.items() if not f.needs_spec), *TABLES]
    if source.format not in (*FORMATS, *TABLES):
        raise UserError(f"{key}.format={source.format}: unknown{did_you_mean(source.format, names)}")
    if source.format not in names and not source.parts:
        raise UserError(f"{data.key}.spec: missing; set it to the path of a feature_spec.yaml")
    if names := repeated(source.columns):
        raise UserError(f"{key}.columns: {names[0]} occurs twice; rename one of the two")
    naming = [n for n, f in FORMATS.items() if f.names_columns]
    lacks_header = source.format in FORMATS and FORMATS[source.format].has_header and not source.header
    if source.optional_columns and (source.format not in naming or lacks_header):
        why = f"applies to {', '.join(naming)}, and to CSV only with a header; remove it"
        raise UserError(f"{key}.optional_columns={source.optional_columns}: {why}")
    _check_text(key, source)
    for name, mark in (("decimal", source.decimal), ("thousands", source.thousands)):
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in "+-"):
            raise UserError(f"{key}.{name}={mark!r}: must be one character, such as . or ,")
    if source.decimal == source.thousands:
        raise UserError(f"{key}.thousands={source.thousands!r}: is the decimal mark, too; change one of them")
    _check_explode(key, source)
    _check_table(data)
    for join in source.joins:
        _check_text(f"{key}.joins: {join.file}: ", join)
        _check_side_format(f"{key}.joins: {join.file}: ", join.format)
    if data.items.file is not None:
        _check_text(f"{data.key}.items", data.items)
        _check_side_format(f"{data.key}.items.", data.items.format)


def _check_side_format(where: str, format_: str | None) -> None:
    if format_ not in (None, *SIDE_FORMATS.values()):
        raise UserError(f"{where}format={format_}: unknown{did_you_mean(format_ or '', {*SIDE_FORMATS.values()})}")


def _check_text(where: str, c: TextConfig) -> None:
    where = where if where.endswith(" ") else f"{where}."
    if not c.separator or "\n" in c.separator or (c.separator.isspace() and len(c.separator) > 1):
        hint = f'must be one or several characters (a TAB is "\\t"), or {SPACES} for any run of spaces and TABs'
        raise UserError(f"{where}separator={c.separator!r}: {hint}")
    if c.quote is not None and (len(c.quote) != 1 or not c.quote.isascii()):
        raise UserError(f"{where}quote={c.quote!r}: must be one ASCII character, or null")
    if c.escape is not None and (len(c.escape) != 1 or not c.escape.isascii() or c.escape == c.quote):
        raise UserError(f"{where}escape={c.escape!r}: must be one ASCII character other than quote, or null")
    if c.line_breaks_in_quotes and c.quote is None:
        raise UserError(f"{where}line_breaks_in_quotes=true: needs {where}quote, the character around such values")
    if c.comment == "":
        raise UserError(f"{where}comment={c.comment!r}: is empty; name the text that comments begin with, or null")
    try:
        codecs.lookup(c.encoding)
        "\n".encode(c.encoding).decode(c.encoding, errors="replace")
    except (LookupError, TypeError, ValueError) as e:
        hint = "unknown; use a name that Python knows, such as latin-1, cp1252 or utf-16"
        raise UserError(f"{where}encoding={c.encoding}: {hint}") from e


def _check_explode(key: str, source: SourceConfig) -> None:
    """Check the form of data.source.explode."""
    if source.explode is None:
        return
    forms = "write a column, [columns with lists of equal length] or {column: separator}"
    exploded = [*(n for n, f in FORMATS.items() if f.explodes), *TABLES]
    if source.format not in exploded:
        raise UserError(f"{key}.explode: does not apply to format {source.format}; it does to {', '.join(exploded)}")
    given = source.explode
    names = list(given) if isinstance(given, list | dict) else [given]
    separators = list(given.values()) if isinstance(given, dict) else []
    if not names or not all(isinstance(n, str) and n for n in names) or repeated(names):
        raise UserError(f"{key}.explode={given}: {forms}")
    if not all(s is None or (isinstance(s, str) and s) for s in separators):
        raise UserError(f'{key}.explode={given}: a separator must be text, such as " "; {forms}')
    is_text = source.format in FORMATS and FORMATS[source.format].untyped
    if is_text and (name := next((n for n, s in exploded_paths(source).items() if s is None), None)):
        hint = f'its columns are text; name the separator of the elements: {{{name}: " "}}'
        raise UserError(f"{key}.explode={name}: {hint}")


def _check_table(data: ResolvedData) -> None:
    """Check the settings of tables and queries."""
    source, table = data.source, TABLES.get(data.source.format)
    queries = isinstance(table, Sql)
    if source.query is not None and not queries:
        raise UserError(f"{data.key}.source.query: applies only to format sql; this is {source.format}")
    if queries and not source.query:
        raise UserError(f"{data.key}.source.query: missing; format sql reads the rows of this query")
    if queries and not READS.fullmatch(source.query or ""):
        why = "must be one query that reads rows: it begins with SELECT, WITH or FROM, and has no second statement"
        raise UserError(f"{data.key}.source.query={source.query!r}: {why}")
    if table is not None and data.root is None:
        raise UserError(f"{data.key}.root: missing; format {source.format} needs the {table.root_is}")
    if table is not None and (source.joins or data.has_item_table or data.split.by == "files"):
        why = f"takes no side files and no split by files; {table.instead_of_sides}"
        raise UserError(f"{data.key}.source.format={source.format}: {why}")
