"""Names of the columns of parsed rows that are not features. They are reserved: no feature can have these names."""

LABEL = "__label__"  # the label, or the first of several labels
WEIGHT = "__weight__"
TIME = "__time__"  # the time that a split by time sorts by
KEY = "__key__"  # the value whose rows a split by hash keeps together
GROUP = "__group__"  # the group that the row belongs to
ORDER = "__order__"  # the number or time that sorts the rows of a group
SPLIT = "__split__"  # the split of an arranged row: 0 train, 1 validation, 2 test
PLACE = "__place__"  # the row's position among all rows
ITEM = "__item__"  # in the item table: the value that identifies an item
TARGETS = "__targets__"  # the items that follow a query, as candidates
HISTORY = "__history__"  # the items before a query, as candidates
ROW = "__row__"  # PLACE in training rows, null in all others


def label_column(place: int, name: str) -> str:
    """Return the column of the label at this place."""
    return f"{LABEL}{name}" if place else LABEL


def prefix_name(levels: int) -> str:
    """Return the name of the feature of the first codes of semantic ids together: semantic_1_2 for 2 levels."""
    return "semantic_" + "_".join(str(i + 1) for i in range(levels))
