"""Lines of label and key:value pairs, against scikit-learn's reader."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE
from recsys.data.raw.formats import FORMATS, column_names, read
from recsys.schema.source_schema import SourceConfig

SOURCE = SourceConfig(format="svmlight")


def rows(file: Path) -> pl.DataFrame:
    blocks = [b for part in FORMATS[SOURCE.format].ranges(SOURCE, file) for b in read(SOURCE, file, [], part)]
    assert not [b.bad for b in blocks if b.bad]
    return pl.concat([b.frame for b in blocks])


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]))
def test_as_scikit_learn_reads_it(
    tmp_path_factory: pytest.TempPathFactory, n: int, width: int, seed: int, dense: float
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)) * (rng.random((n, width)) <= dense)
    x[0, 0] = 1.0
    file = tmp_path_factory.mktemp("svm") / "a.txt"
    query = np.sort(rng.integers(0, 5, n))
    dump_svmlight_file(x, rng.integers(0, 5, n), str(file), zero_based=False, query_id=query)
    expected, y, qid = load_svmlight_file(str(file), query_id=True)
    found = rows(file)
    assert found["label"].cast(pl.Float64).to_list() == y.tolist() and found["qid"].cast(pl.Int64).to_list() == list(
        qid
    )
    assert found[LINE].to_list() == [*range(1, n + 1)]
    for i in range(expected.shape[1]):
        column = expected[:, [i]].toarray()[:, 0]
        read_ = found[f"f{i + 1}"].cast(pl.Float64).to_list() if f"f{i + 1}" in found.columns else [0.0] * n
        assert read_ == column.tolist()


def test_bad_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    lines = ["1 qid:1 1:5 2:6 # first", "0 qid:1 2:7", "0 3", "1 1:2 1:3", *["0 1:1"] * 10_000, "1 9:1"]
    file.write_text("\n".join(lines) + "\n")
    assert column_names(SOURCE, file) == ["label", "qid", "f1", "f2"]
    [block] = read(SOURCE, file, [])
    read_rows = block.frame.head(3).select("label", "qid", "f1", "f2").rows()
    assert read_rows == [("1", "1", "5", "6"), ("0", "1", "0", "7"), ("0", None, "1", "0")]
    assert [(b.line, b.reason) for b in block.bad] == [
        (3, "a field is not key:value"),
        (4, "a key occurs twice"),
        (10_005, "key 9 is not in the first lines of the file"),
    ]
    file.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"no line is 'label key:value key:value \.\.\.'"):
        column_names(SOURCE, file)
