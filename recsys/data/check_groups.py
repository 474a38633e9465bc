"""Check the parts of a data config that use groups: earlier rows, sequences and items."""

from recsys.data.transforms.encodings import Target
from recsys.data.transforms.resolved_data import ResolvedData
from recsys.errors import UserError, did_you_mean
from recsys.schema.data_schema import DenseConfig, SequenceConfig, SparseConfig

LOOK_BACK_KEYS = ("lag", "difference", "last")


def check_groups(data: ResolvedData) -> None:
    """Check `group`, `sequences`, `items` and the features that read earlier rows.

    Args:
        data: the data config.

    Raises:
        UserError: the config has a mistake.
    """
    if data.group is not None and not data.group.by:
        raise UserError("data.group.by: missing; data.group.together=true needs the column of the groups")
    for name, d in data.dense_columns.items():
        if not data.label_configs and any(isinstance(s, Target) for s in d.steps):
            raise UserError(f"{data.key}.dense.{name}: target needs a label, but these rows have none")
    for kind, features in (("dense", data.dense), ("sparse", data.sparse)):
        for name, c in features.items():
            if c is not None:
                _check_feature(data, f"{data.key}.{kind}.{name}", c)
    for kind, defaults in (("dense_defaults", data.dense_defaults), ("sparse_defaults", data.sparse_defaults)):
        for name in (*LOOK_BACK_KEYS, "age", "per"):
            if getattr(defaults, name, None) is not None:
                raise UserError(f"{data.key}.{kind}.{name}: cannot be a default; set it per feature")
    if data.split.by == "leave_one_out" and data.group is None:
        raise UserError("data.split.by=leave_one_out: needs data.group; the last rows of each group test and validate")
    if data.group is not None and data.group.gap is not None and data.group.order is None:
        raise UserError(f"data.group.gap={data.group.gap}: needs data.group.order; the gap is a difference in it")
    if data.together and (data.sequences is not None or data.item_feature is not None):
        why = "applies to rows with labels, and these are for retrieval; remove it"
        raise UserError(f"data.group.together=true: {why}")
    if data.sequences is not None:
        _check_sequences(data, data.sequences)
    _check_items(data)


def _check_feature(data: ResolvedData, where: str, c: DenseConfig | SparseConfig) -> None:
    keys = [k for k in LOOK_BACK_KEYS if getattr(c, k, None) is not None]
    if len(keys) > 1:
        raise UserError(f"{where}: {keys[0]} and {keys[1]} cannot be combined; remove one of them")
    for key in keys:
        if data.group is None:
            why = "because it reads earlier rows of a group"
            raise UserError(f"{where}.{key}={getattr(c, key)}: needs data.group, {why}")
    if isinstance(c, DenseConfig):
        if c.difference is not None and c.cyclic is not None:
            raise UserError(f"{where}.difference: the difference of times is a number of seconds; remove cyclic")
        return
    if keys and (c.split is not None or c.pattern is not None):
        other = "split" if c.split else "pattern"
        raise UserError(f"{where}.{keys[0]}: reads one value a row, but {other} makes several; remove one of them")
    if c.difference is not None and c.quantiles is None:
        raise UserError(f"{where}.difference={c.difference}: is a number; set quantiles to make it sparse")
    if c.age:
        _check_age(data, where, c)
    if c.per is not None and (data.sequences is None or c.per not in ("item", "group")):
        problem = "applies only with data.sequences" if data.sequences is None else "must be item or group"
        raise UserError(f"{where}.per={c.per}: {problem}")
    if data.sequences is not None and c.last is not None:
        raise UserError(f"{where}.last={c.last}: is ignored with data.sequences, which has max_length; remove it")


def _check_age(data: ResolvedData, where: str, c: SparseConfig) -> None:
    where = f"{where}.age=true"
    if data.sequences is not None:
        raise UserError(f"{where}: does not apply with data.sequences; set difference, the pause before each item")
    if c.last is None:
        raise UserError(f"{where}: needs last, the number of earlier rows whose ages are listed")
    if data.group is not None and data.group.order is None:
        raise UserError(f"{where}: needs data.group.order, the time by which the rows of a group are sorted")
    if c.quantiles is None:
        raise UserError(f"{where}: is a number; set quantiles to make it sparse")


def _check_items(data: ResolvedData) -> None:
    """Check `items`. Raises UserError if it has a mistake."""
    c, sparse, name = data.items, data.sparse_columns, data.item_feature
    if name is None:
        if data.has_item_table:
            given = f"file={c.file}" if c.file is not None else "vectors"
            raise UserError(f"data.items.{given}: needs data.items.feature, the feature whose values are items")
        return
    where = f"data.items.feature={name}"
    if name not in sparse:
        raise UserError(f"{where}: there is no such sparse feature{did_you_mean(name, list(sparse))}")
    if data.group is None:
        why = "because the items of a group's later rows are predicted from its earlier rows"
        raise UserError(f"{where}: needs data.group, {why}")
    settings = data.sparse[name] or SparseConfig()
    if sparse[name].encode != "vocabulary" or any(
        getattr(settings, k) is not None for k in ("cross", "lag", "difference", "last", "split", "pattern", "per")
    ):
        raise UserError(
            f"{where}: must be a single column with encode=vocabulary, without cross, lag, difference, last, split, "
            "pattern or per"
        )
    if data.sequences is not None and data.sequences.held_out not in ("next", "all"):
        raise UserError(f"data.sequences.held_out={data.sequences.held_out}: must be next or all")
    if not c.ids and not data.has_item_table:
        raise UserError("data.items.ids=false: items have no features; name a file of vectors in data.items.vectors")
    if c.file is None:
        if c.dense or c.sparse.keys() - data.semantic_features.keys():
            raise UserError("data.items: its features need data.items.file, the table that holds their columns")
        return
    if not c.key:
        raise UserError(f"data.items.file={c.file}: needs data.items.key, its column with the values of {name}")
    if not c.dense and not c.sparse and not c.vectors:
        raise UserError(f"data.items.file={c.file}: needs features under data.items.dense or data.items.sparse")
    for kind, features in (("dense", c.dense), ("sparse", c.sparse)):
        for feature, f in features.items():
            for key in (*LOOK_BACK_KEYS, "age", "per", "table"):
                if f is not None and getattr(f, key, None) is not None:
                    raise UserError(
                        f"data.items.{kind}.{feature}.{key}: does not apply to features of items; remove it"
                    )


def _check_sequences(data: ResolvedData, c: SequenceConfig) -> None:
    where = "data.sequences"
    if data.group is None:
        raise UserError(f"{where}: needs data.group; each group becomes a sequence")
    if c.min_length > c.max_length + 1:
        most = c.max_length + 1
        raise UserError(f"{where}.min_length={c.min_length}: must be at most max_length + 1 = {most}")
    if c.pad not in (None, "left", "right"):
        raise UserError(f"{where}.pad={c.pad}: must be left or right, or null")
    items = {n: s for n, s in data.sparse_columns.items() if s.per != "group"}
    if not items:
        raise UserError(f"{where}: needs a sparse feature of the items, but all have per=group")
    for name, s in items.items():
        if s.split is not None or s.pattern is not None:
            hint = "set per=group, or remove split and pattern"
            raise UserError(f"data.sparse.{name}: an item of a sequence has one value; {hint}")
    split, by = data.split, data.group.by
    if split.by == "random" or (split.by in ("hash", "kfold") and split.column != by):
        raise UserError(
            f"data.split.by={split.by}: would split sequences at random; use leave_one_out, time, order or files, or "
            f"hash or kfold with column={by}"
        )
    if split.validation_rows == "random" and data.group.order is not None:
        raise UserError(
            f"data.split.validation_rows=random: would draw from sequences ordered by {data.group.order}; use last, or "
            "remove data.group.order if the rows of a group have no order"
        )
    if c.held_out == "all" and split.by in ("hash", "kfold"):
        raise UserError(
            f"{where}.held_out=all: with data.split.by={split.by} all items of a group are in one split, so no items "
            "come before the held-out ones; use held_out=next"
        )
