"""Check that the written YAML reads the files: compose it, check it, and parse the first rows."""

from collections import Counter
from pathlib import Path

from recsys.base.errors import UserError

FIRST_BYTES = 1 << 20
WIDE = 1 << 16  # bytes of a YAML that Hydra takes seconds to compose, as it has thousands of features


def verify(name: str, path: Path) -> tuple[int, list[str]]:
    """Return the number of parsed rows, and the most frequent reasons why other rows could not be parsed.

    Raises:
        UserError: the files cannot be read with this YAML, which is renamed so that the name stays free.
    """
    import yaml

    from recsys.config.compose import compose
    from recsys.data.prepare.bad_rows import parse_first_block
    from recsys.data.prepare.check_data import check_data, check_files
    from recsys.data.raw.complete_config import completed
    from recsys.data.raw.formats import FORMATS
    from recsys.job.settings import data_config, data_of

    try:
        if path.stat().st_size < WIDE:  # as training composes it
            data = data_config(compose("train", [f"data={name}"]))
        else:
            data = data_of(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader))  # nosec B506
        check_data(data)
        file, _ = check_files(data)[0]
        data = completed(data, file)
        few = FORMATS[data.source.format].head(data.source, file, FIRST_BYTES)
        rows, bad = parse_first_block(data, file, few)
        reasons = Counter(f"{b.column} {b.problem}" if b.column else b.reason for b in bad)
    except UserError as e:
        draft = path.replace(path.with_suffix(".draft"))
        raise UserError(f"{draft}: holds a YAML that does not read the files yet: {e}") from e
    return rows, [f"{reason} ({count:,} rows)" for reason, count in reasons.most_common(3)]
