"""Check that the written YAML reads the files: compose it, check it, and parse the first rows."""

from collections import Counter
from pathlib import Path

from recsys.errors import UserError


def verify(name: str, path: Path) -> tuple[int, list[str]]:
    """Return how many rows were parsed, and the reasons of rows that could not be, the most frequent first.

    Raises:
        UserError: the files cannot be read with this YAML.
    """
    from recsys.config.compose import compose
    from recsys.config.settings import data_config
    from recsys.data.check import check_data, check_files
    from recsys.data.raw.complete_config import completed
    from recsys.data.raw.ranges import FileRange
    from recsys.data.raw.sources import read_blocks
    from recsys.data.transforms.parse import parse_rows

    try:
        data = data_config(compose("train", [f"data={name}"]))
        check_data(data)
        file, _ = check_files(data)[0]
        data = completed(data, file)
        few = (
            FileRange(0, 1 << 20)
            if data.source.format in ("csv", "libfm", "lists", "jsonl") and not _packed(file)
            else FileRange()
        )
        rows, reasons = 0, Counter[str]()
        for block in read_blocks(data, file, few):
            frame, bad = parse_rows(data, block)
            rows += frame.height
            reasons.update(f"{b.column} {b.problem}" if b.column else b.reason for b in bad)
            break
    except UserError as e:
        raise UserError(f"{path}: is written, but does not read the files yet: {e}") from e
    return rows, [f"{reason} ({count:,} rows)" for reason, count in reasons.most_common(3)]


def _packed(file: Path) -> bool:
    return file.suffix in (".gz", ".zip", ".zst", ".bz2", ".xz")
