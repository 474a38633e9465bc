"""Parse times in the usual formats."""

import polars as pl

# 2024-01-31, 2024/01/31 or 20240131; then T or a space, 12:34, 12:34:56 or 123456, a fraction; then Z or +02:00
ISO = (
    r"^\s*([0-9]{4})(?:-([0-9]{1,2})-|/([0-9]{1,2})/|([0-9]{2}))([0-9]{1,2})"
    r"(?:[Tt ]\s*([0-9]{1,2}):?([0-9]{2})(?::?([0-9]{2}))?(?:[.,][0-9]*)?)?"
    r"\s*(?:[Zz]|UTC|([+-])([0-9]{2}):?([0-9]{2})?)?\s*$"
)
DAY = (19_000_101, 21_991_231)  # numbers in this range are dates yyyymmdd if there is such a day
UNITS = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))  # below 1e11: seconds (to the year 5138), ...; above all: ns
LAST = 2**63 - 1


def as_time(column: str, dtype: pl.DataType) -> pl.Expr:
    """Parse a column as Datetime (microseconds, UTC; local time if the column has a time zone), null if not a time.

    Numbers count from 1970 in the unit that fits their magnitude; text is ISO 8601, a date, or a number.
    """
    x = pl.col(column)
    if dtype == pl.Datetime:
        return x.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    if dtype == pl.Date:
        return x.cast(pl.Datetime("us"))
    if dtype == pl.String:
        return x.map_batches(_times_from_text, return_dtype=pl.Datetime("us"), is_elementwise=True)
    return _time_from_number(x.cast(pl.Float64, strict=False))


def _time_from_number(x: pl.Expr) -> pl.Expr:
    micros: pl.Expr = pl.when(x.abs() < LAST).then(x / 1_000)
    for limit, factor in reversed(UNITS):
        micros = pl.when(x.abs() < limit).then(x * factor).otherwise(micros)
    since = micros.floor().cast(pl.Int64, strict=False).cast(pl.Datetime("us"))
    day = pl.when((x >= DAY[0]) & (x <= DAY[1]) & (x == x.floor())).then(x).cast(pl.Int64).cast(pl.String)
    return pl.coalesce(day.str.to_datetime("%Y%m%d", time_unit="us", strict=False), since)


def _times_from_text(texts: pl.Series) -> pl.Series:
    """Parse numbers and ISO 8601; null for other text and for days and hours that do not exist."""
    x = pl.col("x")
    frame = texts.alias("x").to_frame()
    numbers = frame.select(_time_from_number(x.str.strip_chars().cast(pl.Float64, strict=False))).to_series()
    if numbers.null_count() == texts.null_count():  # no text left, which takes longer to parse
        return numbers
    parts = frame.select(x.str.extract_groups(ISO)).unnest("x")  # columns 1 to 11, the groups of ISO
    day = [pl.col("1"), pl.coalesce("2", "3", "4"), pl.col("5")]
    clock = pl.col("6", "7", "8").fill_null("0")
    local = pl.concat_str([*day, clock], separator=" ")
    minutes = pl.col("10").cast(pl.Int64) * 60 + pl.col("11").cast(pl.Int64).fill_null(0)
    ahead = pl.when(pl.col("9") == "-").then(-minutes).otherwise(minutes).fill_null(0)
    moment = local.str.to_datetime("%Y %m %d %H %M %S", time_unit="us", strict=False) - pl.duration(minutes=ahead)
    return parts.select(pl.coalesce(numbers, moment)).to_series()
