"""Fit the semantic ids of a data config's items, or read them, once: PREPARED/semantic_ids/<fingerprint>/.

codes.parquet       the items and their codes, as columns that features read
codebooks.npz       the codebooks; not for codes of a file
normalise/          what normalised the vectors that were coded
report.json         collisions, use of the codes, reconstruction error
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from filelock import FileLock

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.blocks import prefix_name
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.vectors import Vectors
from recsys.data.raw.raw_files import digests
from recsys.data.raw.vector_files import read_coded_vectors, vector_path
from recsys.data.semantic_ids.residual_codes import ResidualCodes, fit_residual_kmeans
from recsys.files.atomic import whole_folder
from recsys.schema.data_schema import SemanticIdsConfig
from recsys.schema.source_schema import JoinConfig

TABLE, BOOKS, REPORT = "codes.parquet", "codebooks.npz", "report.json"
VERSION = 1  # increase it if the same config and files give other codes
KEY = "item"
NO_CODE = 0  # in the columns of the table, codes begin with 1


@dataclass(frozen=True)
class CodeTable:
    """Items and their codes.

    items: (n,) distinct text
    codes: (n, levels), from 0
    """

    items: pl.Series
    codes: np.ndarray

    def with_numbers(self, taken: "CodeTable | None" = None) -> "CodeTable":
        """Return the table with one more code, the number of earlier items that have the same codes.

        Args:
            taken: items with numbers that come before these.
        """
        before = [] if taken is None else [taken.codes[:, : self.codes.shape[1]]]
        names = [str(i) for i in range(self.codes.shape[1])]
        every = pl.DataFrame(np.concatenate([*before, self.codes]), schema=names)
        numbers = every.select(pl.int_range(pl.len()).over(every.columns)).to_series().tail(len(self.items)).to_numpy()
        return CodeTable(self.items, np.column_stack([self.codes, numbers]))

    def collisions(self, levels: int) -> tuple[int, int]:
        """Return how many items share the codes of the first levels with another item, and the largest such group."""
        counts = np.unique(self.codes[:, :levels], axis=0, return_counts=True)[1]
        return int(counts[counts > 1].sum()), int(counts.max(initial=0))

    def columns(self, prefixes: bool) -> pl.DataFrame:
        """Return the items and one column for each level, with codes from 1, and one for each longer prefix."""
        columns = {KEY: self.items}
        columns |= {f"semantic_{i + 1}": pl.Series(c + 1, dtype=pl.Int64) for i, c in enumerate(self.codes.T)}
        frame = pl.DataFrame(columns)
        if not prefixes:
            return frame
        names = [f"semantic_{i + 1}" for i in range(self.codes.shape[1])]
        joined = [pl.concat_str(names[:n], separator="-").alias(prefix_name(n)) for n in range(2, len(names) + 1)]
        return frame.with_columns(joined)


def use_of_codes(codes: np.ndarray, size: int) -> list[dict[str, float]]:
    """Return for each level the number of codes in use and their perplexity: `size` if all are equally frequent."""
    use = []
    for column in codes.T:
        counts = np.bincount(column, minlength=size)
        shares = counts[counts > 0] / max(len(column), 1)
        use.append({"used": int((counts > 0).sum()), "perplexity": float(np.exp(-(shares * np.log(shares)).sum()))})
    return use


def read_codes(file: Path, key: str, levels: int, size: int) -> CodeTable:
    """Read {item: [code, ...]} from a JSON file.

    Raises:
        UserError: the file does not hold `levels` codes from 0 to size - 1 for each item.
    """
    try:
        given: object = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as e:
        raise UserError(f"{key}={file}: not a JSON file: {str(e).splitlines()[0]}") from e
    if not isinstance(given, dict) or not given:
        raise UserError(f"{key}={file}: must be an object {{item: [code, ...], ...}} with at least one item")
    for item, codes in given.items():
        if not isinstance(codes, list) or not all(type(c) is int for c in codes):
            raise UserError(f"{key}={file}: item {item!r}: {codes!r} is not a list of whole numbers")
        if len(codes) != levels:
            fix = f"set data.semantic_ids.levels={len(codes)}"
            raise UserError(f"{key}={file}: item {item!r} has {len(codes)} codes, not {levels}; {fix}")
        if not all(0 <= c < size for c in codes):
            fix = f"set data.semantic_ids.size={max(codes) + 1} or more" if min(codes) >= 0 else "codes begin with 0"
            raise UserError(f"{key}={file}: item {item!r}: codes {codes} are not from 0 to {size - 1}; {fix}")
    return CodeTable(pl.Series(list(given), dtype=pl.String), np.array(list(given.values()), np.int64))


@dataclass(frozen=True)
class SemanticIds:
    """Fitted semantic ids, which code new items, too.

    table: the items and their codes, with the one against collisions
    config: the settings
    vectors: the normalised vectors and what normalised them; None for codes of a file
    books: the codebooks; None for codes of a file
    """

    table: CodeTable
    config: SemanticIdsConfig
    vectors: Vectors | None = None
    books: ResidualCodes | None = None

    def code_new(self, items: pl.Series, vectors: np.ndarray) -> CodeTable:
        """Return the codes of new items; codes of known items stay as they are.

        Args:
            items: (m,) text, none of them known.
            vectors: (m, width of the file) vectors, before they are normalised.

        Raises:
            ValueError: the codes were read from a file, or the number against collisions exceeds the table of codes.
        """
        if self.books is None or self.vectors is None:
            raise ValueError("codes of a file cannot be computed for new items; add the items to the file")
        return self.number_new(CodeTable(items, self.books.codes(self.vectors.normalise(vectors))))

    def number_new(self, table: CodeTable) -> CodeTable:
        """Add the numbers against collisions to the codes of new items; known items keep the lower numbers."""
        return _numbered(table, self.config, self.table)

    def save(self, folder: Path) -> None:
        """Write the table, the codebooks and what normalises vectors to an existing folder."""
        self.table.columns(self.config.prefixes).write_parquet(folder / TABLE)
        if self.books is not None and self.vectors is not None:
            self.books.save(folder / BOOKS)
            replace(self.vectors, values=self.vectors.values[:0], matrix=self.vectors.matrix[:1]).save(
                folder / "normalise", "vectors"
            )

    @classmethod
    def load(cls, folder: Path, config: SemanticIdsConfig) -> "SemanticIds":
        """Read what `save` wrote."""
        frame = pl.read_parquet(folder / TABLE, glob=False)
        names = [f"semantic_{i + 1}" for i in range(config.levels + config.unique)]
        table = CodeTable(frame[KEY], frame.select(names).to_numpy() - 1)
        if not (folder / BOOKS).exists():
            return cls(table, config)
        vectors = Vectors.load(folder / "normalise", "vectors")
        return cls(table, config, vectors, ResidualCodes.load(folder / BOOKS))


def semantic_ids_folder(data: ResolvedData, home: Path) -> Path | None:
    """Return the folder of the fitted semantic ids, which are fitted first if they are not there; None without any."""
    config = data.semantic_ids
    if config is None:
        return None
    files = [vector_path(data, f) for f in files_of(config)]
    contents = digests(files, home, verify=data.verify)
    settings = asdict(config) | {"column": None}
    text = json.dumps([VERSION, settings, [contents[f] for f in files]], sort_keys=True)
    target = home / "semantic_ids" / hashlib.sha256(text.encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            ids = fit_semantic_ids(data, config)
            report = describe(ids)
            with whole_folder(target) as building:
                ids.save(building)
                (building / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    show(json.loads((target / REPORT).read_text(encoding="utf-8")))
    return target


def files_of(config: SemanticIdsConfig) -> list[str]:
    """Return the files that the config names, as it names them."""
    vectors = config.vectors
    return [f for f in (config.codes, vectors and vectors.file, vectors and vectors.keys) if f]


def fit_semantic_ids(data: ResolvedData, config: SemanticIdsConfig) -> SemanticIds:
    """Fit codebooks to all vectors of the file, and code them; or read the codes of a file.

    Raises:
        UserError: a file cannot be read, or more items share their codes than a level has codes.
    """
    if config.codes is not None:
        table = read_codes(vector_path(data, config.codes), "data.semantic_ids.codes", config.levels, config.size)
        return SemanticIds(_numbered(table, config), config)
    vectors = read_coded_vectors(data)
    x = np.asarray(vectors.matrix[1:])
    if config.method == "rqvae":
        from recsys.data.semantic_ids.residual_codes import fit_rqvae

        books = fit_rqvae(x, config.levels, config.size, config.epochs, config.seed)
    else:
        books = fit_residual_kmeans(x, config.levels, config.size, config.seed)
    table = _numbered(CodeTable(vectors.values, books.codes(x)), config)
    return SemanticIds(table, config, vectors, books)


def _numbered(table: CodeTable, config: SemanticIdsConfig, taken: CodeTable | None = None) -> CodeTable:
    """Add the number against collisions, if items shall have codes of their own."""
    if not config.unique:
        return table
    numbered = table.with_numbers(taken)
    if (most := int(numbered.codes[:, -1].max(initial=0))) >= config.size:
        raise UserError(
            f"data.semantic_ids: {most + 1:,} items have the same {config.levels} codes, more than the {config.size} "
            "numbers against collisions; raise data.semantic_ids.levels or size"
        )
    return numbered


def code_new_items(data: ResolvedData, old: Path, target: Path) -> None:
    """Write a table with the codes of an old folder and the codes of new items to another folder.

    data: names the file of the new items' vectors, before they are normalised, or the file of their codes
    """
    config = data.semantic_ids
    assert config is not None
    ids = SemanticIds.load(old, config)
    if config.codes is not None:
        given = read_codes(vector_path(data, config.codes), "data.semantic_ids.codes", config.levels, config.size)
        at = _unknown(given.items, ids.table.items)
        new = ids.number_new(CodeTable(given.items.filter(at), given.codes[at.to_numpy()]))
    else:
        vectors = read_coded_vectors(data)
        at = _unknown(vectors.values, ids.table.items)
        new = ids.code_new(vectors.values.filter(at), np.asarray(vectors.matrix[1:])[at.to_numpy()])
    pl.concat([t.columns(config.prefixes) for t in (ids.table, new)]).write_parquet(target / TABLE)


def _unknown(items: pl.Series, known: pl.Series) -> pl.Series:
    return ~items.is_in(known.implode())


def describe(ids: SemanticIds) -> dict[str, Any]:
    """Return the report: items, collisions, use of the codes by level, and the reconstruction error by level.

    The error after l levels is the mean squared distance of the vectors to their reconstruction, relative to that to
    their mean.
    """
    c, codes = ids.config, ids.table.codes
    sharing, largest = ids.table.collisions(c.levels)
    report: dict[str, Any] = {
        "method": "file" if ids.books is None else c.method,
        "items": len(codes),
        "size": c.size,
        "collisions": {
            "items": sharing,
            "largest_group": largest,
            "unique": ids.table.collisions(codes.shape[1])[0] == 0,
        },
        "levels": use_of_codes(codes, c.size),
    }
    if ids.books is not None and ids.vectors is not None:
        x = np.asarray(ids.vectors.matrix[1:])
        variance = max(float(((x - x.mean(axis=0)) ** 2).sum()), 1e-30)
        for i in range(c.levels):
            error = float(((x - ids.books.reconstruct(codes[:, : i + 1])) ** 2).sum())
            report["levels"][i]["reconstruction_error"] = error / variance
    return report


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    shared = report["collisions"]
    say(
        f"semantic ids ({report['method']}): {report['items']:,} items; {shared['items']:,} of them share their codes "
        f"(at most {shared['largest_group']})" + ("" if shared["unique"] else "; some items have no codes of their own")
    )
    for i, level in enumerate(report["levels"], 1):
        error = level.get("reconstruction_error")
        left = "" if error is None else f", relative reconstruction error {error:.4f}"
        say(f"level {i}: {level['used']} of {report['size']} codes in use, perplexity {level['perplexity']:.1f}{left}")


def joined(data: ResolvedData, folder: Path | None) -> ResolvedData:
    """Return the config that joins the codes to rows, unless the data is for retrieval: items then have them."""
    c = data.semantic_ids
    if c is None or folder is None or data.item_feature is not None:
        return data
    columns = {name: name for name in data.semantic_features}
    join = JoinConfig(file=str((folder / TABLE).resolve()), key=c.column or "", columns={c.column or "": KEY} | columns)
    return replace(data, source=replace(data.source, joins=[*other_joins(data), join]))


def other_joins(data: ResolvedData) -> list[JoinConfig]:
    """Return the joins of a config without that of the codes, whose file depends on the folder of prepared data."""
    return [join for join in data.source.joins if not data.semantic_features.keys() & join.columns.keys()]


def with_codes(side: pl.DataFrame, key: str, folder: Path) -> pl.DataFrame:
    """Add the codes to the rows of an item table by its column `key`; items without codes have NO_CODE."""
    codes = pl.read_parquet(folder / TABLE, glob=False)
    side = side.with_columns(pl.col(key).cast(pl.String).alias("__item__"))
    levels = [n for n, t in codes.schema.items() if t.is_integer()]
    return (
        side.join(codes, left_on="__item__", right_on=KEY, how="left", maintain_order="left")
        .drop("__item__")
        .with_columns(pl.col(levels).fill_null(NO_CODE))
    )
