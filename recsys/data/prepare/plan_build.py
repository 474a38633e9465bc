"""Find what a config prepares: its files and their digests, and the fingerprint of the result.

Rows of databases, tables and built-in samples are stored as files first:

PREPARED/tables/<fingerprint>/                   rows of databases and tables
PREPARED/sample-<rows>-<seed>/                   rows of a built-in sample
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import polars as pl
from filelock import FileLock

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.data.features.resolved_data import ResolvedData, resolve
from recsys.data.features.row_contents import targets
from recsys.data.prepare.check_data import SplitFiles, check_raw_files, check_root
from recsys.data.prepare.chunks import cut_chunks, label_spec, read_spec, source_spec
from recsys.data.prepare.engine import Engine, OneMachine
from recsys.data.prepare.item_table import items_join, items_vectors
from recsys.data.prepare.passes import Build, building_of
from recsys.data.raw import read_sources
from recsys.data.raw.databases import TABLES
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.raw_files import combine, digests, partitions
from recsys.data.raw.raw_schema import completed
from recsys.data.raw.vector_files import vector_files
from recsys.data.samples import SAMPLES
from recsys.data.semantic_ids.fit_semantic_ids import TABLE, joined, other_joins, semantic_ids_folder
from recsys.files import manifest
from recsys.files.atomic import put_in_place, remove_folder, whole_folder
from recsys.schema.data_schema import DataConfig

# keys of features that came after FORMAT 8: null ones are left out of fingerprints
LATER_KEYS = ("where", "time_zone")
FORMAT = 8  # increase it if a change prepares the same config and files differently


@dataclass(frozen=True)
class Inputs:
    """What prepared data are made of.

    data: the config, with the folder of raw files, the joins of semantic ids, and the columns of the first file
    files: the raw files, in reading order, and the split of each, if the config names it
    sides: the files of joins, by the names that the config has for them
    vectors: the files of vectors, by feature
    codes: the folder of the semantic ids; None if there are none
    digests: of each file's content, together with what the config says of the file's parts and partitions
    """

    data: ResolvedData
    files: SplitFiles
    sides: dict[str, Path]
    vectors: dict[str, Path]
    codes: Path | None
    digests: dict[Path, str]

    @classmethod
    def find(cls, data: ResolvedData, files: SplitFiles | None) -> "Inputs":
        """Find the files of a config. Raises UserError if one is missing. files: the raw files, if they are known"""
        home = Path(data.prepared)
        files = files or check_raw_files(data)
        codes = semantic_ids_folder(data, home)
        data = completed(joined(data, codes), files[0][0])
        joins = [*data.source.joins, *filter(None, [items_join(data)])]
        sides = {join.file: read_sources.side_file(data, join) for join in joins}
        vectors = vector_files(data) | items_vectors(data)
        vectors |= {} if codes is None else {"semantic_ids": codes / TABLE}
        return cls(data, files, sides, vectors, codes, _digests(data, files, [*sides.values(), *vectors.values()]))

    @property
    def contents(self) -> list[object]:
        """Digests of all contents: raw files, their splits, and the files of joins and vectors."""
        data = self.data
        others = {join.file for join in [*other_joins(data), *filter(None, [items_join(data)])]}
        sides = {name: self.digests[file] for name, file in self.sides.items() if name in others}
        vectors = {name: self.digests[file] for name, file in self.vectors.items()}
        return [[self.digests[f] for f, _ in self.files], [split for _, split in self.files], sides, vectors]

    @property
    def has_instants(self) -> bool:
        """Whether rows are ordered by moments with a time zone, of which older versions read the clock."""
        source = self.data.source
        schema = read_sources.raw_frame(self.data, self.files[0][0]).schema
        times = [schema.get(source.rename.get(c, c)) for c in self.data.moments.values()]
        return any(getattr(dtype, "time_zone", None) for dtype in times)


def _digests(data: ResolvedData, files: SplitFiles, more: Sequence[Path]) -> dict[Path, str]:
    """Return a digest of the content of each raw file, and of the further files."""
    parts = {f: FORMATS[data.source.format].files(data.source, f) for f, _ in files}
    raw = dict.fromkeys(p for ps in parts.values() for p in ps)
    of_part = digests([*raw, *more], Path(data.prepared), verify=data.verify)
    result = dict(of_part)
    for file, own in parts.items():
        if own != [file] or data.source.parts:
            of_columns = [[p.columns, p.dtypes] for p in data.source.parts.get(str(file), [])]
            result[file] = combine([of_part[p] for p in own], of_columns)
        if values := partitions(file, data.root):
            result[file] = combine([result[file]], values)
    return result


def plan_build(config: DataConfig, engine: Engine | None = None, files: SplitFiles | None = None) -> Build:
    """Find the raw files and their digests, and return the build that prepares them.

    files: the raw files, if `check_raw_files` has already checked them

    Raises UserError if a file is missing.
    """
    resolved = resolve(config)
    check_root(resolved)
    home = Path(resolved.prepared)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"data.prepared={home}: cannot be created ({e.strerror}); name another folder") from e
    inputs = Inputs.find(with_root(resolved, home), files)
    data, contents = inputs.data, inputs.contents
    content = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    if inputs.has_instants:
        contents.append("instants")
    older, name = (f"{data.name}-{_fingerprint(data, contents, older=x)}" for x in (True, False))
    spec = read_spec(data, {join.file: inputs.digests[inputs.sides[join.file]] for join in data.source.joins})
    return Build(
        data,
        cut_chunks(data, inputs.files, inputs.digests),
        spec,
        target=home / name,
        folder=building_of(home / name),
        engine=engine or OneMachine(),
        contents=content,
        codes=inputs.codes,
        older=older if older != name else "",
    )


def raw_files(config: DataConfig) -> list[Path]:
    """Return the raw files of a data set, in reading order. Raises UserError if one is missing."""
    data = resolve(config)
    return [file for file, _ in check_raw_files(with_root(data, Path(data.prepared)))]


def _fingerprint(data: ResolvedData, contents: object, *, older: bool = False) -> str:
    """Return the digest of what prepared data depend on. older: as versions did that thinned rows after the fit"""
    config = asdict(data)
    for key in ("root", "spec", "prepared", "max_bad_rows", "sample", "keep_read", "verify"):
        config.pop(key)
    if data.position_column is None:
        config.pop("position")  # as below
    if not data.k_core:
        config.pop("k_core")  # data that was prepared before this key existed keeps its fingerprint
    if config["group"] is not None and not (data.has_moments and data.look_backs):
        config["group"].pop("ties")  # as above: rows saw each other in the order of the files
    config["label"] = label_spec(config["label"])
    config["labels"] = {name: label_spec(label) for name, label in config["labels"].items()}
    kinds = [part[kind] for part in (config, config["items"]) for kind in ("dense", "sparse")]
    for c in (config["dense_defaults"], config["sparse_defaults"], *(c for kind in kinds for c in kind.values() if c)):
        for key in LATER_KEYS:
            if c.get(key) is None:
                c.pop(key, None)  # as above
    config["source"] = source_spec(replace(data.source, joins=other_joins(data)))
    config["derive"] = [*data.derive.items()]  # in order: one may read another
    for files in ("train_files", "validation_files", "test_files", "context_files"):
        config["split"].pop(files)  # `contents` has the split of each file
    for key in ("rows", "window", "origins"):
        if config["split"][key] is None:  # as above
            config["split"].pop(key)
    rules = (c.encoder.vocabulary for c in data.sparse_columns.values())
    # FORMAT 8 missed some values of features with min_count: 0; the next FORMAT is 10
    unseen = any(v is not None and not v.min_count for v in rules)
    marks = ["recency"] * bool(data.recency_columns)
    if not older:  # transforms were fitted to all negatives, and did not know their rows again
        marks += ["thinned"] * (data.sample_negatives < 1) + ["contents"] * bool(targets(data))
    text = json.dumps([FORMAT + unseen, config, contents, *marks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_root(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config with a folder of raw files: that of the config, of the sample, or of a table's stored rows."""
    if data.root is not None:
        return with_stored_rows(data, home) if data.source.format in TABLES else data
    assert data.sample is not None
    kind = "" if data.sample.kind == "clicks" else f"{data.sample.kind}-"
    folder = home / f"sample-{kind}{data.sample.rows}-{data.sample.seed}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with whole_folder(folder) as building, bar("generating", data.sample.rows) as progress:
                written = lambda rows: progress.advance(rows - progress.done)  # noqa: E731
                SAMPLES[data.sample.kind](building, rows=data.sample.rows, seed=data.sample.seed, progress=written)
    return replace(data, root=str(folder))


def with_stored_rows(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config that reads the table's rows from Parquet files, after writing them under `home`.

    Raises:
        UserError: the table cannot be read, or lacks a column that the config names.
    """
    assert data.root is not None
    folder = home / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    # a digest or version that changes whenever the table does; None for a server, which has neither
    table = TABLES[data.source.format]
    if (file := table.file(data.root)) is not None and file.is_file():
        state: str | None = digests([file], home, verify=data.verify)[file]
    else:
        state = table.version(data.root)
    if state is None:
        building = Path(mkdtemp(dir=folder, prefix=".reading-"))
        try:
            _write(data, building)
            content = [entry[1:] for _, entry in sorted(manifest.entries_of(building).items())]
            target = folder / _key([data.source.query, content])
            with FileLock(f"{target}.lock"):
                if not target.exists():
                    put_in_place(building, target)
        finally:
            with suppress(OSError):
                remove_folder(building)
        return _local(data, target)
    target = folder / _key([data.source.format, data.root, data.source.query, state])
    with FileLock(f"{target}.lock"):
        if not target.exists():
            with whole_folder(target) as building:
                _write(data, building)
    return _local(data, target)


def _key(state: object) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _write(data: ResolvedData, folder: Path) -> None:
    rows, table = 0, TABLES[data.source.format]
    with bar(f"reading {data.source.format}") as progress:
        for i, batch in enumerate(table.read(data.source, data.root or "")):
            # a column without a value in a batch has no type, so it becomes text
            frame = batch.with_columns(pl.col(n).cast(pl.String) for n, t in batch.schema.items() if t == pl.Null)
            file = folder / f"part-{i:05d}.parquet"
            frame.write_parquet(file, compression="lz4")
            if not i:
                read_sources.check_columns(_local(data, folder), file)
            rows += frame.height
            progress.advance(frame.height)
    if not rows:
        raise UserError(f"data.root: the {table.rows_of} returns no rows")


def _local(data: ResolvedData, folder: Path) -> ResolvedData:
    source = replace(data.source, format="parquet", files=["*.parquet"], query=None)
    return replace(data, root=str(folder), source=source)
