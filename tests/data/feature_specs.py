"""Data written by what NVIDIA publishes about its Dataset Feature Specification, with NumPy alone."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

CARDINALITIES = {"c_small": 100, "c_middle": 3000, "c_large": 70_000}
TYPES = {"c_small": np.int8, "c_middle": np.int16, "c_large": np.int32}
NUMBERS = ["n_0", "n_1", "n_2"]
Rows = dict[str, np.ndarray]


def rows(n: int, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    made: Rows = {c: draw.integers(0, size, n).astype(TYPES[c]) for c, size in CARDINALITIES.items()}
    for c, size in CARDINALITIES.items():
        made[c][:2] = 0, size - 1
    made |= {x: draw.normal(size=n).astype(np.float16) for x in NUMBERS}
    return made | {"label": (draw.random(n) < 0.4)}


def features() -> dict[str, Any]:
    about: dict[str, Any] = {c: {"dtype": np.dtype(TYPES[c]).name, "cardinality": n} for c, n in CARDINALITIES.items()}
    return about | {x: {"dtype": "float16"} for x in NUMBERS} | {"label": {"dtype": "bool"}}


def channels() -> dict[str, list[str]]:
    return {"categorical": [*CARDINALITIES], "numerical": NUMBERS, "label": ["label"]}


def save(folder: Path, source: dict[str, Any], **more: Any) -> Path:
    spec = {"feature_spec": features(), "source_spec": source, "channel_spec": channels(), "metadata": {}}
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump({**spec, **more}))
    return folder / "feature_spec.yaml"


def split_binary(folder: Path, mappings: dict[str, Rows], cuts: tuple[int, ...] = ()) -> Path:
    """cuts: rows at which the files of the numerical chunk end, and another one begins."""
    source = {}
    for name, of in mappings.items():
        (folder / name).mkdir(parents=True)
        ends = [*cuts, len(of["label"])]
        numerical = np.stack([of[x] for x in NUMBERS], axis=1)
        files = [f"{name}/numerical_{i}.bin" for i in range(len(ends))]
        for file, a, b in zip(files, [0, *ends], ends, strict=False):
            numerical[a:b].tofile(folder / file)
        source[name] = [{"type": "split_binary", "features": NUMBERS, "files": files}]
        for c in ("label", *CARDINALITIES):
            of[c].tofile(folder / name / f"{c}.bin")
            source[name].append({"type": "split_binary", "features": [c], "files": [f"{name}/{c}.bin"]})
    return save(folder, source)


def csv(folder: Path, mappings: dict[str, Rows], chunks: list[list[str]], cuts: list[list[int]]) -> Path:
    """Without a header; of each chunk, the rows at which its files end."""
    source: dict[str, Any] = {}
    for name, of in mappings.items():
        (folder / name).mkdir(parents=True)
        n = len(of["label"])
        for i, (names, ends) in enumerate(zip(chunks, cuts, strict=True)):
            files = []
            for j, (a, b) in enumerate(zip([0, *ends], [*ends, n], strict=True)):
                lines = [
                    ",".join(str(v) for v in row) for row in zip(*(as_text(of[c][a:b]) for c in names), strict=True)
                ]
                (folder / name / f"{i}_{j}.csv").write_text("\n".join(lines) + "\n")
                files.append(f"{name}/{i}_{j}.csv")
            source.setdefault(name, []).append({"type": "csv", "features": names, "files": files})
    return save(folder, source)


def as_text(values: np.ndarray) -> list[Any]:
    return [int(v) if values.dtype.kind in "bi" else float(v) for v in values]


def days(folder: Path, n: int, rows_a_day: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """day_i_dense.npy, day_i_sparse.npy, day_i_labels.npy as TorchRec's BinaryCriteoUtils lays them out."""
    draw = np.random.default_rng(1)
    folder.mkdir()
    made = []
    for day in range(n):
        dense = np.log(draw.integers(0, 1000, (rows_a_day, 13)) + 3).astype(np.float32)
        sparse = draw.integers(-(2**31), 2**31, (40, 26))[draw.integers(0, 40, rows_a_day)].astype(np.int32)
        labels = draw.integers(0, 2, (rows_a_day, 1)).astype(np.int32)
        for kind, array in {"dense": dense, "sparse": sparse, "labels": labels}.items():
            np.save(folder / f"day_{day}_{kind}.npy", array)
        made.append((dense, sparse, labels))
    return made
