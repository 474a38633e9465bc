"""python -m recsys.predict run=RUN_DIR input=FILES output=preds.parquet [k=20]

Scores raw rows, with or without a label, through the transforms that were fitted in training. Of a model that
retrieves, lists the k best items of each group (recsys.recommend). From Python:

    predictor = Predictor.load("outputs/my_run")
    predictor.predict(pl.DataFrame(...))       # raw columns in, probabilities out
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError
from recsys.progress import bar, results, say

if TYPE_CHECKING:
    from recsys.data.blocks import BadRow, Block
    from recsys.data.transforms import Fitted
    from recsys.schema import DataConfig


@dataclass
class Predictor:
    """A run's model and transforms, in this process."""

    module: Any
    fitted: Fitted

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Predictor:
        """From a run's folder, whatever world size and plan wrote its checkpoint."""
        from recsys.config import kind_of
        from recsys.data.transforms import Fitted
        from recsys.run_dir import choose_checkpoint, open_run
        from recsys.training import restored_module

        cfg, path = open_run(run)
        if kind_of(cfg) != "predicts":
            raise UserError(
                f"run={run}: its model retrieves items, and scores no rows; use recsys.recommend.Recommender"
            )
        fitted = Fitted.load(path)
        return cls(restored_module(cfg, fitted, choose_checkpoint(path, checkpoint)), fitted)

    def predict(self, raw: pl.DataFrame) -> pl.Series:
        """(rows,) probabilities of raw rows; null where a number cannot be read. Extra columns are ignored."""
        from recsys.data.arrange import in_context
        from recsys.data.blocks import LINE, Block
        from recsys.data.transforms import typed

        frame = raw.with_row_index(LINE).cast({LINE: pl.Int64})
        rows, _ = typed(self.fitted.data, Block(Path("frame"), frame), labelled=False)
        scores, _ = self.score(in_context(self.fitted.data, rows))
        scored = frame.select(LINE).join(scores, on=LINE, how="left", maintain_order="left")
        return scored["probability"]

    def score(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Of typed rows: their line and probability, how many of each sparse feature's ids are 0."""
        import torch

        from recsys.data.blocks import LINE
        from recsys.data.loader import batch_of

        applied = self.fitted.apply(frame)
        features = self.fitted.features
        if frame.height:
            with torch.no_grad():
                _, logits = self.module.dmp(batch_of(applied, features, self.fitted.matrices))
            probability = torch.sigmoid(logits[:, 0]).numpy()
        else:
            probability = np.zeros(0, np.float32)
        unknown = applied.select(
            (pl.col(f.name).explode() if f.multi_valued else pl.col(f.name)).eq(0).mean().alias(f.name)
            for f in features.sparse
        )
        return frame.select(LINE).with_columns(pl.Series("probability", probability, dtype=pl.Float32)), unknown


def predict_files(run: str, files: list[Path], output: Path, *, checkpoint: str, batch_size: int) -> dict[str, Any]:
    """Score raw files into one Parquet file: file, line, probability (null where the row cannot be read).

    Returns rows, bad rows and the share of ids out of vocabulary per sparse feature that has one (hashed ones do not).
    """
    from recsys.data import sources
    from recsys.data.blocks import LINE
    from recsys.data.write import Output

    out = Output(output)
    predictor = Predictor.load(run, checkpoint)
    data = predictor.fitted.data
    for file in files:
        sources.check_columns(sources.rows_to_predict(data, file), file, labelled=False)
    rows = 0
    fitted = predictor.fitted
    unknown = {f.name: 0.0 for f in fitted.features.sparse if f.table in fitted.vocabularies}
    with bar("predicting", unit="rows") as shown:
        for file in files:
            for frame, wrong in _typed_blocks(data, file):
                pieces = [predictor.score(p) for p in (frame.iter_slices(batch_size) if frame.height else [frame])]
                scores = pl.concat([scored for scored, _ in pieces])
                lost = pl.DataFrame(
                    {LINE: [b.line for b in wrong], "probability": [None] * len(wrong)},
                    schema=scores.schema,
                )
                out.write(
                    pl.concat([scores, lost])
                    .sort(LINE)
                    .select(pl.lit(str(file)).alias("file"), pl.col(LINE).alias("line"), "probability")
                )
                out.keep(wrong)
                rows += frame.height
                for scored, share in pieces:
                    for name in unknown if scored.height else ():
                        unknown[name] += (share[name].item() or 0.0) * scored.height
                shown.advance(frame.height)
    out.close()
    if rows == 0:
        raise UserError(f"input: none of {out.bad} rows can be read; see {out.bad_rows}")
    return {
        "rows": rows,
        "bad_rows": out.bad,
        "bad_rows_file": str(out.bad_rows) if out.bad else None,
        "out_of_vocabulary": {name: total / rows for name, total in unknown.items()},
    }


def _typed_blocks(data: DataConfig, file: Path) -> Iterator[tuple[pl.DataFrame, list[BadRow]]]:
    """Rows ready to be transformed, and those that cannot be read; the whole file at once where rows look at others."""
    from recsys.data import sources
    from recsys.data.arrange import in_context
    from recsys.data.blocks import Block
    from recsys.data.transforms import typed

    blocks: Iterable[Block] = sources.read_blocks(sources.rows_to_predict(data, file), file, unlabelled=True)
    if data.group is not None and (all_of := list(blocks)):
        blocks = [Block(file, pl.concat(b.frame for b in all_of), [bad for b in all_of for bad in b.bad])]
    for block in blocks:
        frame, bad = typed(data, block, labelled=False)
        yield in_context(data, frame), bad


def input_files(patterns: list[str]) -> list[Path]:
    """Files named by paths, folders or globs. Raises UserError for what is not there."""
    from recsys.data.places import is_remote, matching

    files: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if is_remote(pattern):
            found = matching(pattern, "input")
        elif path.is_dir():
            found = sorted(p for p in path.iterdir() if p.is_file())
        else:
            found = [Path(p) for p in sorted(glob.glob(pattern))]
        if not found:
            raise UserError(f"input={pattern}: no such file")
        files += found
    for file in files:
        if file.stat().st_size == 0:
            raise UserError(f"input={file}: the file is empty")
    return files


def _command(cfg: DictConfig) -> None:
    from recsys.config import kind_of
    from recsys.run_dir import choose_checkpoint, open_run
    from recsys.versions import check_versions

    if cfg.batch_size is not None and cfg.batch_size < 1:
        raise UserError(f"batch_size={cfg.batch_size}: must be at least 1")
    files = input_files([str(i) for i in cfg.input] if OmegaConf.is_list(cfg.input) else [str(cfg.input)])
    trained, path = open_run(cfg.run)
    choose_checkpoint(path, cfg.checkpoint)
    check_versions()
    size = cfg.batch_size or trained.trainer.eval_batch_size
    if kind_of(trained) == "predicts":
        for key in ("k", "filter_history"):
            if cfg[key] is not None:
                told = "is of models that retrieve items; this run's gives a probability for each row, so leave it out"
                raise UserError(f"{key}={cfg[key]}: {told}")
        _say_scored(cfg, predict_files(cfg.run, files, Path(cfg.output), checkpoint=cfg.checkpoint, batch_size=size))
    else:
        from recsys.recommend import recommend_files

        how = {"checkpoint": cfg.checkpoint, "k": cfg.k, "filter_history": cfg.filter_history, "batch_size": size}
        found = recommend_files(cfg.run, files, Path(cfg.output), **how)
        if found["bad_rows"]:
            told = f"left out of histories, reasons in {found['bad_rows_file']}"
            say(f"{found['bad_rows']} rows could not be read: {told}")
        if found["cold"]:
            say(f"{found['cold']:,} of {found['groups']:,} groups have no item that training knows")
        say(f"{found['groups']:,} lists of up to {found['k']} items written to {cfg.output}")


def _say_scored(cfg: DictConfig, found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="ids out of vocabulary (never seen in training, or too rare)", title_justify="left")
    table.add_column("feature")
    table.add_column("share", justify="right")
    for name, share in found["out_of_vocabulary"].items():
        table.add_row(name, f"{share:.2%}")
    if table.rows:
        results.print(table)
    if found["bad_rows"]:
        say(f"{found['bad_rows']} rows could not be read: null in the output, reasons in {found['bad_rows_file']}")
    say(f"{found['rows']:,} rows scored into {cfg.output}")


def main() -> None:
    """The command line."""
    cli.run("predict", _command)


if __name__ == "__main__":
    main()
