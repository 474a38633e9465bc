"""Check a data config, and the files that it names, before a row is read."""

from dataclasses import replace
from pathlib import Path

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features import GROUP, LABEL
from recsys.data.features.blocks import CONTENTS, ELEMENT, IN_SPLIT, KEY, LINE, ORDER, PLACE, ROW, SPLIT, TIME, TIMES
from recsys.data.features.encoders import SparseColumn
from recsys.data.features.group_features import CONTEXT
from recsys.data.features.label_columns import check_labels
from recsys.data.features.label_kinds import ClassLabelColumn
from recsys.data.features.resolved_data import ResolvedData, feature_spec, resolve
from recsys.data.features.row_contents import targets
from recsys.data.features.row_sources import LOOK_BACK_KEYS, Age, Column
from recsys.data.features.vectors import check_vectors_config
from recsys.data.prepare.bad_rows import MAX_BAD, check_first_rows
from recsys.data.prepare.check_source import check_source
from recsys.data.prepare.item_table import check_items_table
from recsys.data.prepare.split import SPLITS, check_split
from recsys.data.raw import read_sources
from recsys.data.raw.databases import TABLES
from recsys.data.raw.derive import features_by_column
from recsys.data.raw.raw_files import check_remote, is_remote
from recsys.data.raw.raw_schema import completed
from recsys.data.raw.vector_files import check_vector_files, vector_files
from recsys.data.semantic_ids.fit_semantic_ids import other_joins
from recsys.files.user_files import check_name, name_problem, shown_name
from recsys.schema.data_schema import DataConfig, SequenceConfig

SplitFiles = list[tuple[Path, int | None]]  # raw files, each with its split if data.split.by=files, else None
RESERVED = ("label", LABEL, TIME, KEY, GROUP, ORDER, TIMES, SPLIT, IN_SPLIT, PLACE, CONTENTS, ROW, LINE, ELEMENT)


def check_data(data: DataConfig) -> None:
    """Check the config itself.

    Args:
        data: the data config, or that of its item table.

    Raises:
        UserError: the config has a mistake.
    """
    data = resolve(data)
    key = data.key
    _check_defaults(data)
    check_source(data)
    check_labels(data)
    if data.position_column is not None and data.derive:
        made = features_by_column(data, feature_spec(data, lambda *_: 1)).get(data.position_column, ())
        if made:
            why = f"{made[0]} is made of it, which requests would have to name; remove that feature"
            raise UserError(f"{key}.position.column={data.position_column}: {why}")
    dense = data.dense_columns
    if twice := sorted(set(data.dense).union(dense) & set(data.sparse)):
        hint = f"give one of them another name and set its column: {twice[0]}"
        raise UserError(f"{key}: {twice[0]} is both a dense and a sparse feature; {hint}")
    if not data.dense and not data.sparse:
        raise UserError(f"{key}: no feature is named, neither under dense nor under sparse")
    tables = {s.table for s in data.sparse.values() if s and s.table}
    check_name(data.name, "data.name", "my_data")
    for name in [*data.dense, *dense, *data.sparse, *tables, *data.labels]:
        problem = "is a reserved word" if name in RESERVED else "contains ." if "." in name else name_problem(name)
        if problem:
            hint = f"choose another name and set column: {shown_name(name)}"
            raise UserError(
                f"{key}: {shown_name(name)} is not a valid name of a feature, table or label: it {problem}; {hint}"
            )
    past = {c.key for c in data.columns if c.look_back is not None}
    for where, column in data.raw_columns:
        if column in data.label_columns:
            how = f'; last and lag take other columns of the earlier rows that where chooses: where: "{column} = 1"'
            why = f"reads {column}, the column of the label; choose another column"
            raise UserError(f"{where}: {why}{how if where in past else ''}")
    _check_semantic_ids(data)
    _check_tables(data)
    _check_groups(data)
    if (items := data.item_table) is not None:
        check_data(items)
    check_split(data.split)


def check_reader_installed(data: DataConfig) -> None:
    """Raise UserError if the package that reads the raw data is not installed."""
    if data.root is not None:
        check_remote(data.root, "data.root")
        if (table := TABLES.get(data.source.format)) is not None:
            table.check_packages(data.root)


def _check_semantic_ids(data: ResolvedData) -> None:
    """Check `semantic_ids`. Raises UserError if it has a mistake."""
    c, key = data.semantic_ids, f"{data.key}.semantic_ids"
    if c is None:
        return
    if c.vectors is not None and c.codes is not None:
        raise UserError(f"{key}: names vectors and codes; remove one of them")
    if c.vectors is not None:
        check_vectors_config(c.vectors, f"{key}.vectors")
    if data.item_feature is None and not c.column:
        raise UserError(f"{key}.column: missing; name the raw column that holds the items")
    if data.item_feature is not None and c.column:
        raise UserError(
            f"{key}.column={c.column}: applies to rows; the items of retrieval have codes already, remove it"
        )


def without_codes(data: ResolvedData) -> ResolvedData:
    """Return the config without the features whose columns come from semantic ids, not from the raw files."""
    if data.semantic_ids is None or data.item_feature is not None:
        return data
    sparse = {n: c for n, c in data.sparse.items() if n not in data.semantic_features}
    source = replace(data.source, joins=other_joins(data))
    return replace(data, sparse=sparse, source=source, semantic_ids=None)


def _check_defaults(data: ResolvedData) -> None:
    """Check `dense_defaults` and `sparse_defaults`. Raises UserError if they have a key that only features take."""
    single = (*LOOK_BACK_KEYS, "where", "age", "per", "cross", "quantiles", "cyclic")
    for kind, defaults in (("dense_defaults", data.dense_defaults), ("sparse_defaults", data.sparse_defaults)):
        for name in single:
            if getattr(defaults, name, None) is not None:
                raise UserError(f"{data.key}.{kind}.{name}: cannot be a default; set it per feature")
    buckets = data.sparse_defaults.buckets
    if buckets is not None and not any(hasattr(c.encoder, "buckets") for c in data.sparse_columns.values()):
        raise UserError(f"{data.key}.sparse_defaults.buckets={buckets}: no feature has encode=hash")


def _check_tables(data: ResolvedData) -> None:
    """Check the features that share a table. Raises UserError if their ids differ, or two have vectors."""
    firsts: dict[str, SparseColumn] = {}
    for name, c in data.sparse_columns.items():
        first = firsts.setdefault(c.table, c)
        if first.encoder != c.encoder:
            other = first.key.rpartition(".")[2]
            raise UserError(
                f"{c.key}: shares its table with {other}; both must have the same encode and number of rows"
            )
        if c.vectors is None:
            continue
        if data.key != "data":
            raise UserError(f"{c.key}.vectors: does not apply to features of items; set it on a feature of data.sparse")
        others = [n for n, o in data.sparse_columns.items() if n != name and o.vectors and o.table == c.table]
        if others:
            raise UserError(f"{c.key}.vectors: {others[0]} shares the table and has vectors, too; remove one of them")


def _check_groups(data: ResolvedData) -> None:
    """Check `group`, `sequences`, `items` and the features that read earlier rows."""
    if data.group is not None and not data.group.by:
        raise UserError("data.group.by: missing; data.group.together=true needs the column of the groups")
    for name in targets(data):
        if (first := next(iter(data.label_kinds.items()), None)) is None:
            raise UserError(f"{data.key}.dense.{name}: target needs a label, but these rows have none")
        if isinstance(first[1], ClassLabelColumn):
            why = f"target is the mean of the first label, and {first[0]} is one of classes, which have none"
            raise UserError(f"{data.key}.dense.{name}: {why}; put another label first, or leave target out")
    for c in data.columns:
        if c.look_back is not None and data.group is None:
            raise UserError(
                f"{c.key}.{c.look_back.key}={c.look_back.rows}: needs data.group, because it reads earlier "
                "rows of a group"
            )
        if isinstance(c.look_back, Age) and data.group is not None and data.group.order is None:
            raise UserError(
                f"{c.key}.age=true: needs data.group.order, the time by which the rows of a group are sorted"
            )
    if data.split.by == "leave_one_out" and data.group is None:
        raise UserError("data.split.by=leave_one_out: needs data.group; the last rows of each group test and validate")
    if data.group is not None and data.group.gap is not None and data.group.order is None:
        raise UserError(f"data.group.gap={data.group.gap}: needs data.group.order; the gap is a difference in it")
    if data.group is not None and data.has_moments and (data.group.order is None or data.item_feature is not None):
        why = "needs data.group.order" if data.group.order is None else "does not apply to sequences and retrieval"
        raise UserError(f"data.group.ties=moment: {why}; remove it")
    if data.together and (data.sequences is not None or data.item_feature is not None):
        why = "applies to rows with labels, and these are for retrieval; remove it"
        raise UserError(f"data.group.together=true: {why}")
    if data.sequences is not None:
        _check_sequences(data, data.sequences)
    if (data.split.rows is not None or data.split.context_files) and (
        data.item_feature is not None or not data.look_backs or data.split.by == "leave_one_out"
    ):
        key = "context_files" if data.split.rows is None else "rows"
        why = "is for rows with labels and features that look back (last, lag, difference, age)"
        raise UserError(f"data.split.{key}: {why}; leave it out, or leave rows out by data.where")
    _ = data.core_columns
    _check_items(data)


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
    item, settings = sparse[name], data.sparse[name]
    is_column = isinstance(item.source, Column) and item.look_back is None and not (settings and settings.per)
    if not is_column or item.encoder.vocabulary is None:
        raise UserError(
            f"{where}: must be a single column with encode=vocabulary, without cross, lag, difference, last, split, "
            "pattern or per"
        )
    if not item.model:
        raise UserError(f"{item.key}.model=false: models must see the feature whose values are retrieved; remove it")
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
            for key in (*LOOK_BACK_KEYS, "where", "age", "per", "table"):
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
    if not any(c.sequence for c in data.sparse_columns.values()):
        raise UserError(f"{where}: needs a sparse feature of the items, but all have per=group")
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


def check_root(data: DataConfig) -> None:
    """Raise UserError if the config names neither raw files nor a built-in sample."""
    if data.root is None and data.sample is None and not data.source.parts:
        raise UserError(f"data={data.name}: set data.root=DIR, the folder of its raw files")


def names_files(data: DataConfig) -> bool:
    """Return whether the config names raw files: neither the built-in sample, nor a table or the rows of a query."""
    return data.root is not None and data.source.format not in TABLES


def check_raw_files(data: ResolvedData) -> SplitFiles:
    """Check all files that the config names.

    Return the raw files in reading order, each with its split if data.split.by=files, else None.

    Raises:
        UserError: a file is missing, empty, or lacks a column that the config names, or its first rows cannot be read.
    """
    split = data.split
    files: SplitFiles
    if split.by != "files":
        files = [(f, None) for f in read_sources.find_files(data)]
    else:
        named = dict(enumerate((split.train_files, split.validation_files, split.test_files)))
        named = {CONTEXT: split.context_files} | named  # the rows of context come first
        files = [(f, i) for i, globs in named.items() if globs for f in read_sources.find_files(data, list(globs))]
        names = {CONTEXT: "context", **dict(enumerate(SPLITS))}
        for path, i in files:
            if others := [j for q, j in files if q == path and j != i]:
                raise UserError(f"data.split: {path.name} is both in {names[i or 0]} and in {names[others[0] or 0]}")
    for path, _ in files:
        read_sources.check_columns(without_codes(data), path)
    vector_files(data)
    check_vector_files(data)
    check_items_table(data)
    if files and data.max_bad_rows < MAX_BAD and not is_remote(str(files[0][0])):
        check_first_rows(without_codes(completed(data, files[0][0])), files[0][0])
    return files
