"""Which features' vectors of new values training has to train: those that can meet one, and do not see one."""

from pathlib import Path

import polars as pl
import pytest
from raw_rows import of_yaml

from recsys.data.loader.training_rows import untrained_unknowns
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.files.manifest import DamagedFile


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    rows = 1_000
    train = 800  # then 100 validation and 100 test rows, by order
    columns = {
        "repeated": [i % 5 for i in range(rows)],
        "once": [i % 5 if i else 99 for i in range(rows)],
        "later": [i % 5 if i < train else 77 for i in range(rows)],
        "rare": [i % 5 if i else 99 for i in range(rows)],  # min_count=2: row 0 is trained
        "hashed": [i % 5 if i else 99 for i in range(rows)],
    }
    frame = pl.DataFrame(columns).with_columns(
        y=pl.int_range(rows) % 2, some=pl.Series([[i % 5, (i + 1) % 5] if i else [99] for i in range(rows)])
    )
    frame.write_parquet(tmp_path / "a.parquet")
    return prepare(
        of_yaml(f"""
            root: {tmp_path}
            prepared: {tmp_path}/prepared
            source: {{format: parquet, files: [a.parquet]}}
            split: {{by: order, validation: 0.1, test: 0.1}}
            sparse:
              repeated: {{}}
              once: {{}}
              later: {{}}
              rare: {{min_count: 2}}
              hashed: {{encode: hash, buckets: 50}}
              some: {{split: " ", pooling: mean, max_length: 2}}
        """)
    )


def test_features_that_can_meet_new_values_and_train_none(prepared: Prepared) -> None:
    assert untrained_unknowns(prepared) == ["once", "later", "some"]


def test_a_damaged_file_is_named(prepared: Prepared) -> None:
    [file] = prepared.files("validation")
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(DamagedFile, match=r"validation/.*parquet: is damaged and cannot be read"):
        untrained_unknowns(prepared)
