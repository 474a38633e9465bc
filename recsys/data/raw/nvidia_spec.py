"""Read NVIDIA's Dataset Feature Specification (feature_spec.yaml of its DeepLearningExamples) as a data config.

    feature_spec   feature -> dtype, cardinality
    source_spec    train, test, validation -> chunks; each chunk holds some of the columns (features) in
                   consecutive files (files), as csv or split_binary (type)
    channel_spec   numerical, categorical, label -> features

Paths are relative to the file. Values are encoded already: ids are rows of tables, numbers are model inputs.
Features that the data config sets itself take precedence over the specification.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from recsys.base.errors import UserError, did_you_mean
from recsys.base.parsing import parse
from recsys.data.raw.csv_files import SplitCsv
from recsys.data.raw.raw_format import repeated
from recsys.schema.data_schema import DataConfig, DenseConfig, SparseConfig, SplitConfig
from recsys.schema.fields import LISTED
from recsys.schema.source_schema import PartConfig, SourceConfig

NUMERICAL, CATEGORICAL, LABEL = ("numerical", "categorical", "label")
SPEC_FORMATS = {"csv": SplitCsv.name, "split_binary": "split_binary"}
AUTO = "auto"  # a cardinality that was not counted
KNOWN = ConfigDict(extra="forbid")
Names = Annotated[list[str], LISTED]


class _Feature(BaseModel):
    dtype: str | None = None
    cardinality: Annotated[int, Field(strict=True, ge=1)] | Literal["auto"] = "auto"
    table: str | None = None


class _Chunk(BaseModel):
    type: Literal["csv", "split_binary"]
    features: list[str] = Field(min_length=1)
    files: list[str] = Field(min_length=1)


class _Mappings(BaseModel):
    model_config = KNOWN
    train: list[_Chunk] = Field(min_length=1)
    test: list[_Chunk] = Field(min_length=1)
    validation: list[_Chunk] | None = None


class _Channels(BaseModel):
    model_config = KNOWN
    numerical: Names = []
    categorical: Names = []
    label: Annotated[list[str], Field(min_length=1, max_length=1)]


class _Spec(BaseModel):
    feature_spec: dict[str, _Feature]
    source_spec: _Mappings
    channel_spec: _Channels
    metadata: dict[str, Any] | None = None


def expand_spec(data: DataConfig) -> DataConfig:
    """Add the features, files and splits of data.spec, if it is set, to the config.

    Raises:
        UserError: the specification has a mistake.
    """
    if data.spec is None:
        return data
    file = Path(data.spec).expanduser().absolute()
    spec = _load(file)
    channels = spec.channel_spec
    for name in (every := [*channels.numerical, *channels.categorical, *channels.label]):
        if name not in spec.feature_spec:
            near = did_you_mean(name, spec.feature_spec)
            raise UserError(f"{file}: channel_spec: {name} is not in feature_spec{near}")
    if twice := repeated([_plain(name) for name in every]):
        raise UserError(f"{file}: channel_spec: two features are named {twice[0]}")
    numerical = {_plain(n): DenseConfig(column=n) for n in channels.numerical}
    categorical = {_plain(n): _sparse(n, spec.feature_spec[n]) for n in channels.categorical}
    chunks = {name: value for name, value in spec.source_spec if value}
    kinds = {chunk.type for own in chunks.values() for chunk in own}
    if len(kinds) > 1:
        raise UserError(f"{file}: source_spec: {' and '.join(sorted(kinds))} cannot be mixed")
    mappings = {name: _parts(file, spec, name, own) for name, own in chunks.items()}
    source = SourceConfig(
        format=SPEC_FORMATS[kinds.pop()], header=False, quote=data.source.quote, separator=data.source.separator
    )
    source.parts = {f: parts for mapping in mappings.values() for f, parts in mapping.items()}
    files = {f"{name}_files": list(mapping) for name, mapping in mappings.items()}
    split = SplitConfig(**{**vars(data.split), "by": "files", "validation_files": [], **files})
    return replace(
        data,
        spec=None,
        root=str(file.parent),
        source=source,
        split=split,
        label=replace(data.label, column=channels.label[0]),
        dense={**numerical, **data.dense},
        sparse={**categorical, **data.sparse},
    )


def _load(file: Path) -> _Spec:
    if not file.is_file():
        hint = "; name the file, not its folder" if file.is_dir() else ""
        raise UserError(f"data.spec={file}: no such file{hint}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{file}:{line} not YAML ({getattr(e, 'problem', None) or 'not text'})") from e
    spec = parse(_Spec, content, file=str(file))
    if spec.source_spec.validation is None and spec.metadata and "validation" in spec.metadata:
        # where `export_nvidia.export` writes it
        validation = {"validation": spec.metadata["validation"]}
        spec = parse(_Spec, content | {"source_spec": content["source_spec"] | validation}, file=str(file))
    return spec


def _plain(name: str) -> str:
    """Return a valid feature name: cat_0.bin, as NVIDIA's own tools name it, becomes cat_0."""
    return re.sub(r"[./\\]", "_", name.removesuffix(".bin"))


def _sparse(name: str, about: _Feature) -> SparseConfig:
    """Return the config of a categorical feature; one without a cardinality gets a vocabulary."""
    if about.cardinality == AUTO:
        return SparseConfig(column=name, encode="vocabulary")
    return SparseConfig(column=name, encode="id", rows=int(about.cardinality), table=about.table)


def _parts(file: Path, spec: _Spec, mapping: str, chunks: list[_Chunk]) -> dict[str, list[PartConfig]]:
    """Return the parts of each raw file.

    The label's first file represents the mapping; a CSV file with all columns is a raw file of its own.
    """
    channels, where = spec.channel_spec, f"{file}: source_spec.{mapping}"
    parts = []
    for chunk in chunks:
        parts.append(PartConfig([str(file.parent / f) for f in chunk.files], chunk.features))
        if chunk.type == "split_binary":
            parts[-1].dtypes = [_dtype(file, spec, name) for name in chunk.features]
    columns = [c for part in parts for c in part.columns]
    if twice := repeated(columns) or repeated([f for part in parts for f in part.files]):
        raise UserError(f"{where}: names {twice[0]} twice")
    for name in (*channels.numerical, *channels.categorical, *channels.label):
        if name not in columns:
            raise UserError(f"{where}: no chunk has the feature {name}")
    if len(parts) == 1 and chunks[0].type == "csv":
        return {f: [replace(parts[0], files=[f])] for f in parts[0].files}
    return {next(p.files[0] for p in parts if channels.label[0] in p.columns): parts}


def _dtype(file: Path, spec: _Spec, name: str) -> str:
    if name not in spec.feature_spec:
        raise UserError(f"{file}: source_spec: {name} is not in feature_spec{did_you_mean(name, spec.feature_spec)}")
    text = str(spec.feature_spec[name].dtype)
    try:
        dtype = np.dtype(text.removeprefix("torch."))
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise UserError(f"{file}: feature_spec.{name}.dtype={text}: must be a numeric type such as int32 or float16")
    return dtype.name
