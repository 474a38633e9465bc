"""Columns of typed rows that are no features; no feature can be named so."""

LABEL = "__label__"
TIME = "__time__"  # what a split by time sorts by
KEY = "__key__"  # what a split by hash keeps together
PLACE = "__place__"  # a row's place among all rows
ROW = "__row__"  # the same of a training row; null in all other rows
