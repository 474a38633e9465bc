"""Compare ranking runs with and without `loader.unknown` on test rows with and without new values.

    python benchmarks/unknown_ids.py RUN ...

Prints, for each run: its share, the number of test rows with a new value of a feature, and AUC and log loss of all
rows, of these rows and of the others.
"""

import sys
from pathlib import Path

import polars as pl
from torch import from_numpy
from torchmetrics.functional.classification import binary_auroc

from recsys.data.loader.training_rows import untrained_unknowns
from recsys.data.prepare.prepared import prepare
from recsys.training.run_dir import open_run


def figures(rows: pl.DataFrame) -> str:
    """Return the AUC and the log loss of rows with the columns p and y."""
    if rows["y"].n_unique() < 2:
        return "no rows of both classes"
    p, y = (from_numpy(rows[name].to_numpy().copy()).double() for name in ("p", "y"))
    likely = p.clamp(1e-7, 1 - 1e-7)
    loss = -(y * likely.log() + (1 - y) * (1 - likely).log()).mean()
    return f"{binary_auroc(p, y.long()):.4f} / {loss:.4f}"


def main() -> None:
    """Print a line for each run."""
    for run in map(Path, sys.argv[1:]):
        cfg, _ = open_run(str(run))
        data = prepare(cfg.data)
        multi = {f.name for f in data.fitted.features.sparse if f.multi_valued}
        names = [n for n in untrained_unknowns(data) if n not in multi]
        if not names:
            print(f"{run.name}: no feature can meet new values")
            continue
        ids = pl.scan_parquet(data.files("test"), glob=False).select(names).collect()
        new = ids.select(pl.any_horizontal(*(pl.col(n) == 0 for n in names))).to_series()
        predictions = pl.read_parquet(run / "test_predictions.parquet")
        label = next(n for n in predictions.columns if n.startswith("label"))
        score = next(n for n in predictions.columns if n.startswith("probability"))
        rows = predictions.select(p=score, y=label, new=new)
        parts = [rows, rows.filter("new"), rows.filter(~pl.col("new"))]
        counted = f"{new.sum()} of {len(new)} rows have new values of {', '.join(names)}"
        print(f"{run.name}, seed {cfg.seed}, {cfg.loader.unknown}: {counted}; {'; '.join(map(figures, parts))}")


if __name__ == "__main__":
    main()
