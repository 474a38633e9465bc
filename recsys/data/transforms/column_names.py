"""Columns of typed rows that are no features; no feature can be named so."""

LABEL = "__label__"
TIME = "__time__"  # what a split by time sorts by
KEY = "__key__"  # what a split by hash keeps together
GROUP = "__group__"  # whose row it is
ORDER = "__order__"  # what a group's rows are sorted by
SPLIT = "__split__"  # of a row that has been arranged: 0 train, 1 validation, 2 test
PLACE = "__place__"  # a row's place among all rows
ITEM = "__item__"  # of the table of items, the value that stands for one
TARGETS = "__targets__"  # of a query, as candidates: what follows
HISTORY = "__history__"  # and all that came before
ROW = "__row__"  # the same of a training row; null in all other rows
