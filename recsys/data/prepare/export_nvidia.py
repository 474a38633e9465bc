"""Export prepared data in the layout of NVIDIA's DLRM: split binary files and a feature_spec.yaml.

    FOLDER/feature_spec.yaml
    FOLDER/train/numerical.bin            float16, row by row
    FOLDER/train/label.bin                one byte a row, 0 or 1
    FOLDER/train/categorical/NAME.bin     int8, int16 or int32, depending on the cardinality
    FOLDER/test/, FOLDER/validation/      the same files

NVIDIA's loader rejects mappings other than train and test. So the validation rows are described under metadata, which
it ignores and raw/nvidia_spec.py reads.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.data.features import LABEL as OUR_LABEL
from recsys.data.prepare.prepared import Prepared
from recsys.data.prepare.split import SPLITS
from recsys.data.raw.nvidia_spec import CATEGORICAL, LABEL, NUMERICAL
from recsys.files.atomic import whole_folder
from recsys.interface.features import FeatureSpec

LABEL_NAME = "label"
IDS = (np.int8, np.int16, np.int32)
Chunks = list[dict[str, Any]]


def id_type(cardinality: int) -> np.dtype:
    """Return the type that NVIDIA's loader expects: the smallest whose maximum is above the cardinality."""
    return next((np.dtype(t) for t in IDS if cardinality < np.iinfo(t).max), np.dtype(np.int32))


def export(prepared: Prepared, folder: Path) -> None:
    """Export to a new folder atomically.

    Raises:
        UserError: the layout cannot hold the data, or the folder exists.
    """
    features = prepared.fitted.features
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"export={folder}: exists already; name a new folder")
    if not features.labels:
        raise UserError("export: the data (sequences) has no label, which the layout needs")
    if bags := [f.name for f in features.sparse if f.multi_valued]:
        raise UserError(
            f"export: {bags[0]} has several values per row, but the layout allows one; "
            f"remove it with ~data.sparse.{bags[0]}"
        )
    splits = [s for s in SPLITS if prepared.rows(s)]
    with whole_folder(folder) as building:
        with bar("exporting", sum(prepared.rows(s) for s in splits)) as shown:
            for split in splits:
                for rows in _write_split(features, prepared.files(split), building / split):
                    shown.advance(rows)
        (building / "feature_spec.yaml").write_text(yaml.safe_dump(_specification(features, splits), sort_keys=False))


def _specification(features: FeatureSpec, splits: list[str]) -> dict[str, Any]:
    """Return the content of feature_spec.yaml."""
    dense = [f.name for f in features.dense]
    feature_spec: dict[str, dict[str, Any]] = {}
    for f in features.sparse:
        feature_spec[f.name] = {"dtype": id_type(f.cardinality).name, "cardinality": f.cardinality}
        feature_spec[f.name] |= {} if f.table == f.name else {"table": f.table}
    feature_spec |= {n: {"dtype": "float16"} for n in dense} | {LABEL_NAME: {"dtype": "bool"}}
    mappings: dict[str, Chunks] = {}
    for s in splits:
        by_file = {f"{s}/numerical.bin": dense, f"{s}/label.bin": [LABEL_NAME]}
        by_file |= {f"{s}/categorical/{f.name}.bin": [f.name] for f in features.sparse}
        chunks = [{"type": "split_binary", "features": n, "files": [file]} for file, n in by_file.items() if n]
        mappings[s] = chunks
    metadata = {"validation": mappings.pop("validation")} if "validation" in mappings else {}
    return {
        "feature_spec": feature_spec,
        "source_spec": mappings,
        "channel_spec": {CATEGORICAL: [f.name for f in features.sparse], NUMERICAL: dense, LABEL: [LABEL_NAME]},
        "metadata": metadata,
    }


def _write_split(features: FeatureSpec, files: list[Path], folder: Path) -> Iterator[int]:
    """Write a split, one prepared file after another; yield the number of rows of each."""
    (folder / "categorical").mkdir(parents=True)
    with ExitStack() as stack:
        label = stack.enter_context((folder / "label.bin").open("wb"))
        numbers = stack.enter_context((folder / "numerical.bin").open("wb")) if features.dense else None
        ids = [stack.enter_context((folder / "categorical" / f"{f.name}.bin").open("wb")) for f in features.sparse]
        for file in files:
            frame = pl.read_parquet(file, glob=False)
            label.write(frame[OUR_LABEL].to_numpy().astype(np.bool_).tobytes())
            if numbers is not None:
                numbers.write(_float16(frame.select(f.name for f in features.dense)).tobytes())
            for f, out in zip(features.sparse, ids, strict=True):
                out.write(frame[f.name].to_numpy().astype(id_type(f.cardinality)).tobytes())
            yield frame.height


def _float16(frame: pl.DataFrame) -> np.ndarray:
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(frame.to_numpy().astype(np.float16))
    if not np.isfinite(rows).all():
        name = frame.columns[int(np.argmin(np.isfinite(rows).all(axis=0)))]
        raise UserError(
            f"export: {name} has values above 65504, too large for the layout's float16; give it a transform "
            "(log, standardise, clip)"
        )
    return rows
