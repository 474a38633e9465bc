"""python -m recsys.preprocess data=criteo data.root=DIR report=true

Prepares data without training and shows rows, splits and tables. report=true writes an HTML page that describes the
data, export=FOLDER writes the data in the layout of NVIDIA's DLRM. From Python:

    prepared = preprocess(compose("preprocess", ["data=criteo", "data.root=DIR"]))
    prepared.rows("train"), prepared.fitted.features.tables
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from recsys.base.console import bar, results, say
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.files.atomic import write_text
from recsys.files.outputs import check_output
from recsys.schema.command_schemas import PreprocessConfig

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from recsys.data.features import ResolvedData
    from recsys.data.prepare.prepared import Prepared


MAX_COMPARED = 10_000_000  # rows whose features are compared with those of all others
NOT_COMPARED = ("__weight__", "__row__", "__place__")  # columns of prepared rows beside features and labels


def preprocess(given: DictConfig | PreprocessConfig) -> Prepared:
    """Check the config, and prepare the data unless it has been prepared before.

    Write the report and the export if the config asks for them.
    """
    from recsys.config.compose import object_of
    from recsys.data.prepare.check_data import check_data, check_raw_files, check_reader_installed, names_files
    from recsys.data.prepare.prepared import check_engine, open_engine, prepare
    from recsys.job.run_config import data_of

    cfg = object_of(PreprocessConfig, given)
    if cfg.output is not None:
        if not cfg.report:
            why = "is used only with report=true; add report=true, or leave output out"
            raise UserError(f"output={cfg.output}: {why}")
        check_output(Path(cfg.output), (".html",), root=cfg.data.root, files=cfg.data.source.files)
    if cfg.export is not None:
        check_output(Path(cfg.export), key="export", root=cfg.data.root, files=cfg.data.source.files)
    data = data_of(cfg.data)
    check_data(data)
    check_reader_installed(data)
    check_engine(cfg.engine)
    files = check_raw_files(data) if names_files(data) else None
    if data.root is None and data.sample is not None:
        say(f"data.root is not set: using the built-in sample ({data.sample.rows:,} rows, seed {data.sample.seed})")
    with open_engine(cfg.engine, data) as engine:
        prepared = prepare(data, engine, files)
    _show(prepared)
    if cfg.report:
        output = Path(cfg.output or prepared.folder / "report.html")
        described = replace(prepared.fitted.data, root=prepared.info["root"], prepared=data.prepared)
        _write_report(described, prepared, output)
        say(f"report written to {output}")
    if cfg.export is not None:
        from recsys.data.prepare.export_nvidia import export

        export(prepared, Path(cfg.export))
        say(f"export written to {Path(cfg.export) / 'feature_spec.yaml'}")
    return prepared


def _write_report(data: ResolvedData, prepared: Prepared, output: Path) -> None:
    """Read the raw rows once and write an HTML page that describes them."""
    from recsys.data.prepare.prepared import parsed_rows
    from recsys.data.profile import page, profile_rows

    with bar("profiling", sum(prepared.info["rows"].values())) as shown:

        def counted() -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
            for frame, which in parsed_rows(data):
                yield frame, which
                shown.advance(frame.height)

        profile = profile_rows(data, counted(), prepared.fitted, Path(data.prepared))
    text = page(profile, prepared.info, Path(f"{prepared.folder}.bad_rows.csv"))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)


def _show(prepared: Prepared) -> None:
    """Print the rows of each split, bad rows and the largest tables."""
    from rich.markup import escape
    from rich.table import Table

    info, features = prepared.info, prepared.fitted.features
    total = sum(info["rows"].values()) + info["bad_rows"]
    rows = Table(title="rows", title_justify="left")
    for column in ("", "rows", "share"):
        rows.add_column(column, justify="right" if column else "left")
    for name, n in {**info["rows"], "bad": info["bad_rows"]}.items():
        rows.add_row(name, f"{n:,}", f"{n / total:.1%}")
    results.print(rows)
    if features.tables:
        tables = Table(title="tables", title_justify="left")
        for column in ("table", "rows", "features"):
            tables.add_column(column, justify="right" if column == "rows" else "left")
        order = sorted(features.tables.items(), key=lambda t: -t[1][0].cardinality)
        for name, users in order:
            tables.add_row(escape(name), f"{users[0].cardinality:,}", escape(", ".join(f.name for f in users)))
        results.print(tables)
    if (line := copies(prepared)) is not None:
        say(line)
    say(f"split: {info['split']}; {len(features.dense)} dense and {len(features.sparse)} sparse features")
    say(f"prepared data: {prepared.folder}")


def copies(prepared: Prepared) -> str | None:
    """Return a line about rows that repeat others in all features and labels, and test rows that equal training rows.

    None if there are none, for data without labels, and for more than MAX_COMPARED rows.
    """
    import polars as pl

    fitted, splits = prepared.fitted, ("train", "validation", "test")
    if not fitted.data.label_configs or sum(map(prepared.rows, splits)) > MAX_COMPARED:
        return None
    hashes = {}
    for split in splits:
        if prepared.rows(split):
            rows = pl.scan_parquet(prepared.files(split), glob=False)
            names = [n for n in rows.collect_schema() if n not in NOT_COMPARED]
            hashes[split] = rows.select(pl.struct(names).hash()).collect().to_series()
    every = pl.concat(hashes.values())
    number = every.len() - every.n_unique()
    if not number:
        return None
    shared = hashes["test"].is_in(hashes["train"].unique().implode()).sum() if {*hashes} >= {"train", "test"} else 0
    more = f"; {shared:,} of the {hashes['test'].len():,} test rows equal a training row" if shared else ""
    return f"{number:,} of {every.len():,} rows repeat an earlier row in all features and labels{more}"


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("preprocess", preprocess)


if __name__ == "__main__":
    main()
