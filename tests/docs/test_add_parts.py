"""What the pages of docs/how_to/add say is enough: each is applied to a copy of recsys, as its reader does, and tried."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pyarrow import orc

ROOT = Path(__file__).parents[2]
ASK = """
import json, subprocess, sys, time, urllib.request
from urllib.request import Request, urlopen
url = "http://127.0.0.1:PORT"
server = subprocess.Popen([sys.executable, "-m", "recsys.serve", "out", "port=PORT"])
try:
    for _ in range(600):
        try:
            urlopen(url + "/v2/health/ready")
            break
        except OSError:
            time.sleep(0.1)
    body = json.dumps({"columns": ["integer_1", "nothing"]}).encode()
    print(urlopen(Request(url + "/models/ctr/columns", body)).read().decode())
    paths = json.load(urlopen(url + "/openapi.json"))["paths"]
    print("requestBody" in paths["/models/{model}/columns"]["post"], flush=True)
finally:
    server.terminate()
    server.wait()
"""
FEW = ["model=dnn", "model.dim=4", "trainer.max_steps=2", "trainer.threads=1"]


class Copy:
    """A copy of recsys that a reader of the pages changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("recsys", "conf"):
            shutil.copytree(ROOT / part, folder / "src" / part, ignore=shutil.ignore_patterns("__pycache__"))

    def blocks(self, page: str, language: str = "python") -> list[str]:
        """Return the code of a page."""
        text = (ROOT / "docs" / "how_to" / "add" / f"{page}.md").read_text()
        return re.findall(rf"```{language}\n(.*?)```", text, re.S)

    def change(self, file: str, *changes: tuple[str, str]) -> None:
        """Replace text of a file, each once."""
        path = self.folder / "src" / "recsys" / file
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        path.write_text(text)

    def run(self, *command: str, code: str = "") -> str:
        """Run a command of the copy, or code, and return what it printed."""
        arguments = ["-c", code, *command] if code else ["-m", *command]
        environment = os.environ | {"PYTHONPATH": str(self.folder / "src")}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    def data(self, text: str) -> None:
        (self.folder / "conf" / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "conf" / "data" / "mine.yaml").write_text(f"name: mine\nroot: raw\n{text}")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def rows(folder: Path) -> pl.DataFrame:
    random = np.random.default_rng(0)
    (folder / "raw").mkdir()
    return pl.DataFrame(
        {"y": random.integers(0, 2, 600), "price": random.exponential(50, 600), "s": random.choice([*"abc"], 600)}
    )


@pytest.mark.slow
def test_an_encoder(copy: Copy) -> None:
    [code] = copy.blocks("encoder")
    copy.change(
        "data/features/encoders.py",
        ("ENCODERS: dict", f"{code}\n\nENCODERS: dict"),
        ("Identity, Quantiles)}", "Identity, Quantiles, Magnitude)}"),
    )
    rows(copy.folder).write_parquet(copy.folder / "raw" / "a.parquet")
    copy.data("source: {format: parquet, files: ['*.parquet']}\nlabel: {column: y}\n"
              "sparse:\n  price: {encode: magnitude, buckets: 20}\n  s: {}\n")  # fmt: skip
    copy.run("recsys.train", "data=mine", *FEW, "run_dir=run")
    copy.run("recsys.export", "run=run", "output=out")  # proves the artefact in another process


@pytest.mark.slow
def test_a_format(copy: Copy) -> None:
    [code] = copy.blocks("format")
    copy.change(
        "data/raw/arrow_files.py",
        ("import pyarrow.parquet as pq\n", "import pyarrow.parquet as pq\nfrom pyarrow import orc\n"),
        ("class Parquet(RawFormat)", f"{code}\n\nclass Parquet(RawFormat)"),
    )
    copy.change(
        "data/raw/formats.py",
        ("import Arrow, Parquet", "import Arrow, Orc, Parquet"),
        ("Arrow(), Npy())", "Arrow(), Npy(), Orc())"),
    )
    frame = rows(copy.folder)
    orc.write_table(frame.to_arrow(), copy.folder / "raw" / "a.orc", stripe_size=2048)
    copy.data("source: {format: orc, files: ['*.orc']}\nlabel: {column: y}\ndense: {price: }\nsparse: {s: }\n")
    copy.run("recsys.train", "data=mine", *FEW, "run_dir=run")
    assert json.loads((copy.folder / "run" / "metrics.json").read_text())["protocol"]["rows"]["train"] == 480
    copy.run("recsys.predict", "run=run", "input=raw/a.orc", "output=p.parquet")
    assert pl.read_parquet(copy.folder / "p.parquet").height == frame.height


@pytest.mark.slow
def test_a_metric_a_column_of_the_report_and_a_logger(copy: Copy) -> None:
    code, cell, head = copy.blocks("metric")
    place, heads = "        rows.append([*cells", "    for n in metrics:\n"
    copy.change(
        "report/comparison_table.py",
        (place, f"{textwrap.indent(cell, ' ' * 8)}{place}"),
        (heads, f"    {head}{heads}"),
    )
    copy.change("evaluation/metrics.py", ("NUMBERS = (\n", f"NUMBERS = (\n{textwrap.indent(code.rstrip(), '    ')},\n"))
    [logger] = copy.blocks("others")
    (copy.folder / "src" / "own_loggers.py").write_text(logger)
    (copy.folder / "src" / "conf" / "logger" / "lines.yaml").write_text(*copy.blocks("others", "yaml"))
    overrides = ["data=sample_sales", "data.sample.rows=2000", *FEW, "metrics.predictions=true", "logger=lines"]
    for run in ("a", "b"):
        copy.run(
            "recsys.train", *overrides, "checkpoint.monitor=validation/within_one", f"run_dir={run}", f"seed={len(run)}"
        )
    copy.run("recsys.report", "a", "b", "output=report.html")
    test = json.loads((copy.folder / "a" / "metrics.json").read_text())["test"]
    predicted = pl.read_parquet(copy.folder / "a" / "test_predictions.parquet")
    assert test["within_one"] == pytest.approx(((predicted["prediction"] - predicted["label"]).abs() <= 1).mean())
    assert f'"test/within_one": {test["within_one"]}' in (copy.folder / "a" / "metrics.jsonl").read_text()
    page = (copy.folder / "report.html").read_text()
    assert "within 1" in page and "seconds of training" in page


@pytest.mark.slow
def test_an_endpoint(copy: Copy) -> None:
    function, route = copy.blocks("endpoint")
    copy.change(
        "server/app.py",
        ("_TEXT = {", f"{function}\n\n_TEXT = {{"),
        ('    Route("GET", "/metrics"', f'{route.rstrip()},\n    Route("GET", "/metrics"'),
    )
    copy.run("recsys.train", "data=criteo", "data.sample.rows=2000", *FEW, "run_dir=run")
    copy.run("recsys.export", "run=run", "output=out", "name=ctr")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = copy.run(code=ASK.replace("PORT", str(port)))
    assert '"nothing":false' in said and said.endswith("True\n")
