"""python -m recsys.predict run=RUN_DIR input=FILES output=preds.parquet [k=20]

Scores raw rows, with or without a label, through the transforms that were fitted in training. Of a model that
retrieves, lists the k best items of each group (recsys.serving.recommender). From Python:

    predictor = Predictor.load("outputs/my_run")
    predictor.predict(pl.DataFrame(...))       # raw columns in, probabilities out
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.console import results, say
from recsys.errors import UserError

if TYPE_CHECKING:
    pass


def _command(cfg: DictConfig) -> None:
    from recsys.config.kinds import kind_of
    from recsys.serving.predict_files import input_files, predict_files
    from recsys.training.run_dir import choose_checkpoint, open_run
    from recsys.versions import check_versions

    if cfg.batch_size is not None and cfg.batch_size < 1:
        raise UserError(f"batch_size={cfg.batch_size}: must be at least 1")
    files = input_files([str(i) for i in cfg.input] if OmegaConf.is_list(cfg.input) else [str(cfg.input)])
    trained, path = open_run(cfg.run)
    choose_checkpoint(path, cfg.checkpoint)
    check_versions()
    size = cfg.batch_size or trained.trainer.eval_batch_size
    if kind_of(trained).scores_rows:
        for key in ("k", "filter_history"):
            if cfg[key] is not None:
                told = "is of models that retrieve items; this run's gives a probability for each row, so leave it out"
                raise UserError(f"{key}={cfg[key]}: {told}")
        _say_scored(cfg, predict_files(cfg.run, files, Path(cfg.output), checkpoint=cfg.checkpoint, batch_size=size))
    else:
        from recsys.serving.recommender import recommend_files

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
