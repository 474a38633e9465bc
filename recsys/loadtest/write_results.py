"""Measurements as files: results.csv, results.json and load_test.html."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recsys.files.atomic import write_json, write_text
from recsys.loadtest.figures import COLUMNS, Measurement
from recsys.loadtest.load_page import make_page

FILES = ("results.csv", "results.json", "load_test.html")


def write_results(folder: Path, settings: Mapping[str, Any], model: str, measurements: Sequence[Measurement]) -> None:
    """Write the three files into a folder, which is created.

    Args:
        settings: the settings of the command, by key.
        model: name of the measured model.
        measurements: one for each load, in the order of the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table, data, page = (folder / name for name in FILES)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for m in measurements:
        kinds = " ".join(f"{kind.replace(' ', '_')}={count}" for kind, count in m.error_kinds.items())
        writer.writerow(asdict(m) | {"error_kinds": kinds})
    write_text(table, text.getvalue())
    records = [asdict(m) | {"client_limited": m.client_limited} for m in measurements]
    write_json(data, {"settings": dict(settings), "model": model, "measurements": records})
    write_text(page, make_page(settings, model, measurements))
