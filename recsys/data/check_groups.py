"""What a config may say of groups, and of the sequences and earlier rows that they are there for."""

from recsys.config.schema_data import DataConfig, DenseConfig, SequenceConfig, SparseConfig
from recsys.data.transforms import dense_columns, item_feature, label_column, sparse_columns
from recsys.data.transforms.encodings import Target
from recsys.errors import UserError, did_you_mean

LOOKS_BACK = ("lag", "difference", "last")


def check_groups(data: DataConfig) -> None:
    """Raises UserError for what is wrong with `group`, `sequences`, and features that look at earlier rows."""
    for name, d in dense_columns(data).items():
        if label_column(data) is None and any(isinstance(s, Target) for s in d.steps):
            raise UserError(f"data.dense.{name}: target needs a label, which these rows lack")
    for kind, features in (("dense", data.dense), ("sparse", data.sparse)):
        for name, c in features.items():
            if c is not None:
                _check_feature(data, f"data.{kind}.{name}", c)
    for kind, defaults in (("dense_defaults", data.dense_defaults), ("sparse_defaults", data.sparse_defaults)):
        for key in (*LOOKS_BACK, "per"):
            if getattr(defaults, key, None) is not None:
                raise UserError(f"data.{kind}.{key}: is for a feature, not for all")
    if data.split.by == "leave_one_out" and data.group is None:
        raise UserError("data.split.by=leave_one_out: needs data.group, whose last rows test and validate")
    if data.group is not None and data.group.gap is not None:
        if data.group.order is None:
            raise UserError(f"data.group.gap={data.group.gap}: needs data.group.order, in which it is a pause")
        if not data.group.gap >= 0:
            raise UserError(f"data.group.gap={data.group.gap}: must not be negative")
    if data.sequences is not None:
        _check_sequences(data, data.sequences)
    check_items(data)


def _check_feature(data: DataConfig, where: str, c: DenseConfig | SparseConfig) -> None:
    said = [k for k in LOOKS_BACK if getattr(c, k, None) is not None]
    if len(said) > 1:
        raise UserError(f"{where}: {said[0]} and {said[1]} do not go together; leave one of them out")
    for key in said:
        n = getattr(c, key)
        if n < 1:
            raise UserError(f"{where}.{key}={n}: must be at least 1")
        if data.group is None:
            raise UserError(f"{where}.{key}={n}: needs data.group, whose earlier rows it reads")
    if isinstance(c, DenseConfig):
        if c.difference is not None and c.cyclic is not None:
            raise UserError(f"{where}.difference: of a time is a number of seconds; leave cyclic out")
        return
    if said and (c.split is not None or c.pattern is not None):
        raise UserError(f"{where}.{said[0]}: reads one value a row, not those of {'split' if c.split else 'pattern'}")
    if c.difference is not None and c.quantiles is None:
        raise UserError(f"{where}.difference={c.difference}: is a number, which needs quantiles to be sparse")
    if c.per is not None and (data.sequences is None or c.per not in ("item", "group")):
        told = "is of data.sequences" if data.sequences is None else "must be item or group"
        raise UserError(f"{where}.per={c.per}: {told}")
    if data.sequences is not None and c.last is not None:
        raise UserError(f"{where}.last={c.last}: sequences have max_length; leave it out")


def check_items(data: DataConfig) -> None:
    """Raises UserError for what is wrong with `items`."""
    c, sparse, name = data.items, sparse_columns(data), item_feature(data)
    if name is None:
        if c.file is not None:
            raise UserError(f"data.items.file={c.file}: needs data.items.feature, whose values are the items")
        return
    where = f"data.items.feature={name}"
    if name not in sparse:
        raise UserError(f"{where}: no sparse feature is named so{did_you_mean(name, list(sparse))}")
    if data.group is None:
        raise UserError(f"{where}: needs data.group, whose later rows ask for what its earlier rows lead to")
    own = data.sparse[name] or SparseConfig()
    if sparse[name].encode != "vocabulary" or any(
        getattr(own, k) is not None for k in ("cross", "lag", "difference", "last", "split", "pattern", "per")
    ):
        raise UserError(f"{where}: must be a column's values with encode=vocabulary")
    for other, s in sparse.items():
        if other != name and (s.table or other) == (own.table or name):
            raise UserError(
                f"{where}: {other} shares its table, so that its values would be candidates; give it another"
            )
    if data.sequences is not None and data.sequences.held_out not in ("next", "all"):
        raise UserError(f"data.sequences.held_out={data.sequences.held_out}: must be next or all")
    if c.file is None:
        if c.dense or c.sparse:
            raise UserError("data.items: its features need data.items.file, the table that they stand in")
        return
    if not c.key:
        raise UserError(f"data.items.file={c.file}: needs data.items.key, its column of the values of {name}")
    if not c.dense and not c.sparse:
        raise UserError(f"data.items.file={c.file}: names no feature of an item under data.items.dense or .sparse")
    for kind, features in (("dense", c.dense), ("sparse", c.sparse)):
        for feature, f in features.items():
            for key in (*LOOKS_BACK, "per", "table"):
                if f is not None and getattr(f, key, None) is not None:
                    raise UserError(f"data.items.{kind}.{feature}.{key}: is not of an item")


def _check_sequences(data: DataConfig, c: SequenceConfig) -> None:
    where = "data.sequences"
    if data.group is None:
        raise UserError(f"{where}: needs data.group, whose rows become one")
    for key, least in (("max_length", 1), ("min_length", 2), ("stride", 1)):
        n = getattr(c, key)
        if n is not None and n < least:
            raise UserError(f"{where}.{key}={n}: must be at least {least}")
    if c.min_length > c.max_length + 1:
        raise UserError(f"{where}.min_length={c.min_length}: no row has more than max_length + 1 = {c.max_length + 1}")
    if c.pad not in (None, "left", "right"):
        raise UserError(f"{where}.pad={c.pad}: must be left or right")
    items = {n: s for n, s in sparse_columns(data).items() if s.per != "group"}
    if not items:
        raise UserError(f"{where}: no sparse feature is of the items; all have per=group")
    for name, s in items.items():
        if s.split is not None or s.pattern is not None:
            raise UserError(f"data.sparse.{name}: an item of a sequence has one value; give it per=group, or no split")
    split, by = data.split, data.group.by
    if split.by == "random" or (split.by in ("hash", "kfold") and split.column != by):
        raise UserError(
            f"data.split.by={split.by}: would tear sequences apart; use leave_one_out, time, order or files, "
            f"or hash or kfold of column={by}"
        )
    if c.held_out == "all" and split.by in ("hash", "kfold"):
        raise UserError(
            f"{where}.held_out=all: with data.split.by={split.by} a group's items are all of one split, so that "
            "nothing comes before them; use held_out=next"
        )
