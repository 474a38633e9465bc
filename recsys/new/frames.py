"""Look at a data frame, as recsys.new looks at files, and keep its rows where training reads them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import polars as pl
import yaml
from hydra.core.config_store import ConfigStore

from recsys.base.errors import UserError
from recsys.files.atomic import whole_folder
from recsys.new.questions import Answers, Question

FOLDER = Path("outputs/frames")
ROWS = "rows.parquet"


@dataclass(frozen=True)
class FrameData:
    """The data set of a frame.

    name: of the data set
    yaml: its config, as recsys.new writes it for files, with the reason of each guess
    questions: what the frame does not tell, with the guesses that the config takes
    sure: whether these are taken
    """

    name: str
    yaml: str
    questions: tuple[Question, ...] = ()
    sure: bool = False

    def __str__(self) -> str:
        return self.yaml

    def overrides(self) -> list[str]:
        """Return the overrides that choose this data set, which Hydra then knows by its name."""
        config = yaml.safe_load(self.yaml)
        ConfigStore.instance().store(group="data", name=self.name, node=config, provider="recsys.new")
        return [f"data={self.name}"]


def look_at(frame: pl.DataFrame, answers: Answers) -> FrameData:
    """Return the data set that recsys.new proposes for a frame, whose rows are stored. Raises UserError."""
    from recsys.new.propose import propose
    from recsys.new.write_config import document

    folder = stored(frame)
    file, name = str(folder / ROWS), f"frame_{folder.name}"
    try:
        proposal = propose([file], answers)
    except UserError as e:
        e.args = (str(e).replace(f"files={file}", "rows").replace(file, "rows"),)
        raise
    lines = document(proposal, name).splitlines()
    text = "\n".join(line for line in lines if line != f"# {proposal.command(name)}")  # which is one of the shell
    return FrameData(name, f"{text}\n", tuple(proposal.questions), answers.sure)


def stored(frame: pl.DataFrame) -> Path:
    """Write the rows of a frame as Parquet, unless they are there, and return the folder."""
    if frame.is_empty():
        raise UserError("rows: the frame has no rows")
    # a column without a value has no type
    frame = frame.with_columns(pl.col(n).cast(pl.String) for n, t in frame.schema.items() if t == pl.Null)
    buffer = BytesIO()
    try:
        frame.write_parquet(buffer)
    except pl.exceptions.PolarsError as e:
        raise UserError(f"rows: cannot be written as Parquet: {str(e).splitlines()[0]}") from e
    folder = FOLDER / hashlib.sha256(buffer.getbuffer()).hexdigest()[:12]
    if not folder.exists():
        with whole_folder(folder) as building:
            (building / ROWS).write_bytes(buffer.getbuffer())
    return folder
