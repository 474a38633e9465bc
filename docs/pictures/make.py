"""python docs/pictures/make.py [FOLDER]: make the pictures of pages of docs in FOLDER.

Trains two ranking and two retrieval models on built-in samples, compares them with recsys.report, plans DLRM at
Criteo's size with recsys.plan, draws the recorded benchmark of starts, and takes a screenshot of each page with
Chromium. Without Chromium it makes only the pages: report.html, users.html, plan.html and start.html.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLE = ["data.sample.rows=200000", "metrics.slices=[cat_5]", "trainer.log_every_n_steps=5"]
RUNS = {"dlrm": ["model=dlrm"], "dcnv2": ["model=dcnv2"]}
LISTS = {name: [f"model={name}", "data=sample_sequences"] for name in ("transition", "popularity")}
PLAN = ["model=dlrm", "data=criteo_1tb", "cluster=dgx_h100", "model.dim=128", "sharding=rowwise,tablewise,auto"]
SIZE = {"report": (1280, 1500), "users": (1000, 1150), "plan": (1280, 1150), "start": (1000, 760)}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "bench.py"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync", "--hide-scrollbars"]


def pages(folder: Path, *sample: str) -> None:
    """Write report.html, users.html, plan.html and start.html. sample: overrides of the two runs."""
    for name, overrides in RUNS.items():
        _recsys(folder, "train", *SAMPLE, *overrides, *sample, f"run_dir={name}")
    _recsys(folder, "report", *RUNS, "output=report.html")
    for name, overrides in LISTS.items():
        _recsys(folder, "train", *overrides, f"run_dir={name}")
    _recsys(folder, "report", *LISTS, "users=1", "output=users.html")
    _recsys(folder, "plan", *PLAN, "output=plan.html")
    with (folder / "start.html").open("w") as page:
        subprocess.run([sys.executable, BENCHMARKS, "page", "start"], stdout=page, check=True)


def screenshot(page: Path) -> None:
    """Write PAGE.png beside PAGE.html."""
    browser = next(filter(None, map(shutil.which, CHROMIUM)))
    width, height = SIZE[page.stem]
    with tempfile.TemporaryDirectory() as profile:
        size = [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        subprocess.run(
            [browser, *QUIET, *size, f"--screenshot={page.with_suffix('.png')}", page.absolute().as_uri()],
            check=True,
            capture_output=True,
        )


def _recsys(folder: Path, command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"recsys.{command}", *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    with tempfile.TemporaryDirectory() as work:
        pages(Path(work))
        for name in SIZE:
            if any(map(shutil.which, CHROMIUM)):
                screenshot(Path(work) / f"{name}.html")
            for file in Path(work).glob(f"{name}.*"):
                shutil.copy(file, target)
