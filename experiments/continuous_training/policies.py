"""Compare when to train: never, in full each day, on from the day before, on each quarter of a day, or after drift.

    python experiments/continuous_training/policies.py DIR 30     # days; writes results.csv and DIR/page.html

Days of `data=sample_drifting`, whose teacher's taste changes suddenly, gradually, or back and forth. Each part of a day
is predicted by the model of that moment, and then it may be trained on. Policies that results.csv has are skipped.
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import polars as pl
from sklearn.metrics import roc_auc_score

from recsys.data.samples.drifting import TEACHER, write_days
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.training_config import training_config
from recsys.follow.trainings import PREDICTIONS, measure, train_on
from recsys.pages import render
from recsys.pages.charts.plots import Series, lines
from recsys.pages.page_table import Cells, PageTable, Paint, columns

OUTPUT = Path(__file__).with_name("results.csv")
DRIFTS, PARTS, FIRST, ROWS = ("sudden", "gradual", "seasonal"), 4, 7, 8000
TEST = "test/part.parquet"
FALL = 0.01  # of the AUC, from that of the first day after a training, that counts as drift
POLICIES = (
    "never",
    "full, daily",
    "on from before, daily",
    "on from before, each quarter",
    "on from before, after drift",
)


@dataclass
class Policy:
    """A policy on days of one kind of drift. parts: files of each day"""

    name: str
    settings: FollowConfig
    folder: Path
    days: list[list[str]]
    run: Path = Path()
    runs: int = 0
    rows: int = 0
    seconds: float = 0.0
    untrained: list[str] = field(default_factory=list)
    reference: float | None = None

    def train(self, files: list[str], *, full: bool) -> None:
        """Train on files. The test rows, which a training needs, say nothing here."""
        began = time.process_time()
        overrides = ["trainer.max_epochs=2"] if full else []
        cfg = training_config(self.settings, self.folder / "prepared", files, [TEST], overrides)
        run = train_on(cfg, self.folder / f"run-{self.runs:04d}", None if full else self.run)
        self.run, self.runs, self.untrained, self.reference = run.path, self.runs + 1, [], None
        self.rows += int(run.metrics["train"]["samples"])
        self.seconds += time.process_time() - began

    def predict(self, files: list[str]) -> pl.DataFrame:
        """Return labels and predictions of files."""
        cfg = training_config(self.settings, self.folder / "prepared", [TEST], files, [])
        measure(self.run, cfg, self.folder / "predictions")
        return pl.read_parquet(self.folder / "predictions" / PREDICTIONS)

    def day(self, number: int) -> float:
        """Predict a day, train as the policy says, and return the day's AUC."""
        files = self.days[number]
        if self.name.endswith("quarter"):
            frames = []
            for file in files:
                frames.append(self.predict([file]))
                self.train([file], full=False)
            return _auc(pl.concat(frames))
        auc = _auc(self.predict(files))
        self.untrained += files
        fell = self.reference is not None and auc < self.reference - FALL
        self.reference = auc if self.reference is None else self.reference
        if self.name.startswith("full"):
            self.train([f for day in self.days[number - FIRST + 1 : number + 1] for f in day], full=True)
        elif self.name.endswith("daily") or (self.name.endswith("drift") and fell):
            self.train(self.untrained, full=False)
        return auc


def _auc(frame: pl.DataFrame) -> float:
    return float(roc_auc_score(frame["label"], frame["probability"]))


def write_parts(folder: Path, drift: str, days: int) -> list[list[str]]:
    """Write the days, each in PARTS files; return the files of each day."""
    if not folder.exists():
        write_days(folder, days=days, rows_per_day=ROWS, drift=drift)
        for file in folder.glob("day=*/part.parquet"):
            rows = pl.read_parquet(file)
            for i, part in enumerate(rows.iter_slices(-(-rows.height // PARTS))):
                part.write_parquet(file.with_name(f"part-{i}.parquet"))
            file.unlink()
        (folder / TEST).parent.mkdir()
        pl.read_parquet(folder / "day=2025-01-01" / "part-0.parquet").head(200).write_parquet(folder / TEST)
    return [
        [f.relative_to(folder).as_posix() for f in sorted(day.glob("*.parquet"))]
        for day in sorted(folder.glob("day=*"))
    ]


def best(folder: Path) -> list[float]:
    """Return the best AUC of each day, by the teacher's probabilities."""
    frames = [pl.read_parquet(f) for f in sorted((folder / TEACHER).glob("*.parquet"))]
    return [float(roc_auc_score(f["click"], f["click_expected"])) for f in frames]


def simulate(root: Path, drift: str, name: str, days: int) -> Iterator[dict[str, object]]:
    """Yield a row of results for each day after the first training."""
    log = root / drift / "log"
    files = write_parts(log, drift, days)
    folder = root / drift / name.replace(" ", "_").replace(",", "")
    model = ["model=dlrm", "data=sample_drifting", "trainer.batch_size=256", "trainer.threads=1"]
    settings = FollowConfig.model_validate({"root": folder, "train": model, "partitions": {"folder": log}})
    policy = Policy(name, settings, folder, files)
    policy.train([f for day in files[:FIRST] for f in day], full=True)
    first = policy.rows
    for number, most in list(enumerate(best(log)))[FIRST:]:
        auc = policy.day(number)
        yield {"drift": drift, "policy": name, "day": number, "auc": round(auc, 5), "best": round(most, 5),
               "rows": policy.rows - first, "cpu_seconds": round(policy.seconds)}  # fmt: skip


def page(rows: list[dict[str, str]]) -> str:
    """Return the page of all results."""
    charts, table = [], []
    of: Callable[[dict[str, str]], str] = lambda r: r["policy"]  # noqa: E731
    for drift in DRIFTS:
        mine = [r for r in rows if r["drift"] == drift]
        series = []
        for i, name in enumerate(n for n in POLICIES if any(r["policy"] == n for r in mine)):
            points = [(float(r["day"]), float(r["auc"])) for r in mine if r["policy"] == name]
            series.append(Series(Paint(name, f"var(--c{i})", i), points))
            last = [r for r in mine if r["policy"] == name][-1]
            mean = sum(y for _, y in points) / len(points)
            cells: Cells = [drift, name, f"{mean:.4f}", f"{int(last['rows']):,}", f"{int(last['cpu_seconds']):,}"]
            table.append(cells)
        if series:
            most = [(float(r["day"]), float(r["best"])) for r in next(list(g) for _, g in groupby(mine, of))]
            charts.append(lines(f"AUC, {drift} drift", [*series, Series(Paint("best possible"), most)], "day"))
    names = ("drift", "policy", "mean AUC", "rows trained", "CPU seconds")
    return render(
        Path(__file__).with_name("page.html"),
        title="When to train",
        charts=charts,
        paints=[Paint(n, f"var(--c{i})", i) for i, n in enumerate(POLICIES)] + [Paint("best possible")],
        means=PageTable(columns(names, left=names[:2]), table),
    )


def main() -> None:
    root, days = Path(sys.argv[1]), int(sys.argv[2])
    for drift in DRIFTS:
        for name in POLICIES:
            rows = list(csv.DictReader(OUTPUT.open())) if OUTPUT.exists() else []
            if any((r["drift"], r["policy"]) == (drift, name) for r in rows):
                continue
            new = list(simulate(root, drift, name, days))
            with OUTPUT.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(new[0]), lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerows(new)
    root.mkdir(parents=True, exist_ok=True)
    (root / "page.html").write_text(page(list(csv.DictReader(OUTPUT.open()))))


if __name__ == "__main__":
    main()
