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
from typing import Any

import numpy as np
import yaml

from recsys.base.errors import UserError, did_you_mean
from recsys.data.raw.csv_files import SplitCsv
from recsys.schema.data_schema import DataConfig, DenseConfig, SparseConfig, SplitConfig
from recsys.schema.source_schema import PartConfig, SourceConfig

NUMERICAL, CATEGORICAL, LABEL = CHANNELS = ("numerical", "categorical", "label")
SECTIONS = ("feature_spec", "source_spec", "channel_spec")
SPEC_FORMATS = {"csv": SplitCsv.name, "split_binary": "split_binary"}
AUTO = "auto"  # a cardinality that was not counted
Parts = dict[str, list[PartConfig]]


def expand_spec(data: DataConfig) -> DataConfig:
    """Add the features, files and splits of data.spec, if it is set, to the config.

    Raises:
        UserError: the specification has a mistake.
    """
    if data.spec is None:
        return data
    file = Path(data.spec).expanduser().absolute()
    spec = Spec(file, _load(file))
    channels = spec.channels()
    numerical = {_plain(n): DenseConfig(column=n) for n in channels[NUMERICAL]}
    categorical = {_plain(n): spec.sparse(n) for n in channels[CATEGORICAL]}
    names = [_plain(n) for n in [*channels[NUMERICAL], *channels[CATEGORICAL]]]
    if twice := [n for n in names if names.count(n) > 1]:
        raise UserError(f"{file}: channel_spec: two features are named {twice[0]}")
    format_, mappings = spec.sources()
    source = SourceConfig(format=format_, header=False, quote=data.source.quote, separator=data.source.separator)
    source.parts = {f: parts for mapping in mappings.values() for f, parts in mapping.items()}
    files = {f"{name}_files": list(mapping) for name, mapping in mappings.items()}
    split = SplitConfig(**{**vars(data.split), "by": "files", "validation_files": [], **files})
    return replace(
        data,
        spec=None,
        root=str(file.parent),
        source=source,
        split=split,
        label=replace(data.label, column=channels[LABEL][0]),
        dense={**numerical, **data.dense},
        sparse={**categorical, **data.sparse},
    )


def _load(file: Path) -> dict[str, Any]:
    if not file.is_file():
        hint = "; name the file, not its folder" if file.is_dir() else ""
        raise UserError(f"data.spec={file}: no such file{hint}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{file}:{line} not YAML ({getattr(e, 'problem', None) or 'not text'})") from e
    if not isinstance(content, dict):
        raise UserError(f"{file}: is not a feature specification: it needs {', '.join(SECTIONS)}")
    for section in SECTIONS:
        if not isinstance(content.get(section), dict):
            near = did_you_mean(section, [str(k) for k in content])
            raise UserError(f"{file}: {section} is missing or empty{near}")
    return content


def _plain(name: str) -> str:
    """Return a valid feature name: cat_0.bin, as NVIDIA's own tools name it, becomes cat_0."""
    return re.sub(r"[./\\]", "_", name.removesuffix(".bin"))


class Spec:
    """A feature specification."""

    def __init__(self, file: Path, content: dict[str, Any]) -> None:
        self._file, self._content = file, content
        self._features: dict[str, Any] = content["feature_spec"]

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self._file}: {problem}")

    def _names(self, value: object, where: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._error(f"{where}: must be a list of names")
        if twice := [v for v in value if value.count(v) > 1]:
            raise self._error(f"{where}: names {twice[0]} twice")
        return value

    def channels(self) -> dict[str, list[str]]:
        """Return the features of each channel."""
        spec = self._content["channel_spec"]
        if unknown := [c for c in spec if c not in CHANNELS]:
            raise self._error(f"channel_spec.{unknown[0]}: unknown channel; use {', '.join(CHANNELS)}")
        channels = {c: self._names(spec.get(c) or [], f"channel_spec.{c}") for c in CHANNELS}
        for channel, names in channels.items():
            for name in names:
                if not isinstance(self._features.get(name), dict):
                    near = did_you_mean(name, list(map(str, self._features)))
                    raise self._error(f"channel_spec.{channel}: {name} is not in feature_spec{near}")
        if len(channels[LABEL]) != 1:
            raise self._error(f"channel_spec.label: must name one feature, not {len(channels[LABEL])}")
        return channels

    def sparse(self, name: str) -> SparseConfig:
        """Return the config of a categorical feature; one without a cardinality gets a vocabulary."""
        about = self._features[name]
        rows = about.get("cardinality", AUTO)
        if rows == AUTO:
            return SparseConfig(column=name, encode="vocabulary")
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise self._error(f"feature_spec.{name}.cardinality={rows}: must be a whole number from 1, or auto")
        return SparseConfig(column=name, encode="id", rows=rows, table=about.get("table"))

    def sources(self) -> tuple[str, dict[str, Parts]]:
        """Return the format, and the raw files of each mapping.

        The validation rows may be under metadata, where `export_nvidia.export` writes them.
        """
        spec, metadata = self._content["source_spec"], self._content.get("metadata") or {}
        for name in ("train", "test"):
            if name not in spec:
                near = did_you_mean(name, list(map(str, spec)))
                raise self._error(f"source_spec.{name}: missing; the mappings train and test are needed{near}")
        if unknown := [m for m in spec if m not in ("train", "validation", "test")]:
            raise self._error(f"source_spec.{unknown[0]}: unknown; the mappings are train, test and validation")
        if "validation" not in spec and isinstance(metadata, dict) and "validation" in metadata:
            spec = spec | {"validation": metadata["validation"]}
        formats, mappings = set(), {}
        for mapping, chunks in spec.items():
            where = f"source_spec.{mapping}"
            if not isinstance(chunks, list) or not chunks or not all(isinstance(c, dict) for c in chunks):
                raise self._error(f"{where}: must be a list of chunks, each with type, features and files")
            for kind in (str(chunk.get("type")) for chunk in chunks):
                if kind not in SPEC_FORMATS:
                    near = did_you_mean(kind, SPEC_FORMATS)
                    raise self._error(f"{where}: unknown type {kind}{near}; use csv or split_binary")
                formats.add(SPEC_FORMATS[kind])
            mappings[mapping] = self._parts(chunks, where)
        if len(formats) > 1:
            raise self._error(f"source_spec: {' and '.join(sorted(map(str, SPEC_FORMATS)))} cannot be mixed")
        return formats.pop(), mappings

    def _parts(self, chunks: list[dict[str, Any]], where: str) -> Parts:
        """Return the parts of each raw file.

        The label's first file represents the mapping; a CSV file with all columns is a raw file of its own.
        """
        label = self._content["channel_spec"][LABEL][0]
        parts = []
        for chunk in chunks:
            names = self._names(chunk.get("features"), f"{where}: features")
            files = self._names(chunk.get("files"), f"{where}: files")
            if not names or not files:
                raise self._error(f"{where}: a chunk needs features and files")
            parts.append(PartConfig([str(self._file.parent / f) for f in files], names))
            if chunk["type"] == "split_binary":
                parts[-1].dtypes = [self._dtype(name) for name in names]
        columns = [c for part in parts for c in part.columns]
        self._names(columns, f"{where}: features")
        for name in [n for c in CHANNELS for n in self._content["channel_spec"].get(c) or []]:
            if name not in columns:
                raise self._error(f"{where}: no chunk has the feature {name}")
        if len(parts) == 1 and chunks[0]["type"] == "csv":
            return {f: [replace(parts[0], files=[f])] for f in parts[0].files}
        return {next(p.files[0] for p in parts if label in p.columns): parts}

    def _dtype(self, name: str) -> str:
        about = self._features.get(name)
        if not isinstance(about, dict):
            raise self._error(f"source_spec: {name} is not in feature_spec{did_you_mean(name, self._features)}")
        text = str(about.get("dtype"))
        try:
            dtype = np.dtype(text.removeprefix("torch."))
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "biuf":
            raise self._error(f"feature_spec.{name}.dtype={text}: must be a numeric type such as int32 or float16")
        return dtype.name
