"""Columns of typed rows that are no features; no feature can be named so."""

LABEL = "__label__"
TIME = "__time__"  # what a split by time sorts by
KEY = "__key__"  # what a split by hash keeps together
ROW = "__row__"  # a training row's place among all rows; null in all other rows
