"""python -m recsys.predict run=RUN_DIR input=FILES output=preds.parquet [k=20]
python -m recsys.predict run=RUN_DIR user=42 [k=20]
python -m recsys.predict run=RUN_DIR item=7 [k=20] [items=items_today.csv]

Scores raw rows, with or without a label, through the transforms that were fitted in training. With run=[RUN_DIR,...],
it averages the predictions of several runs. For a retrieval model,
lists the k best items of each group (recsys.online.recommender), or prints those of one user, whose history it reads
from the raw files of the run; or the items most like one. From Python:

    recsys.load("outputs/my_run").predict(frame)        # raw columns in, probabilities out
    recsys.recommend("outputs/my_run", user=42)
    recsys.similar("outputs/my_run", item=7)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.files.outputs import check_output
from recsys.job.fetched_runs import local_run
from recsys.schema.command_schemas import PredictConfig

if TYPE_CHECKING:
    from recsys.job.run_config import RunConfig
    from recsys.online.recommender import Recommender


def _command(cfg: PredictConfig) -> None:
    if cfg.items is None:
        _predict(cfg)
        if len(cfg.run) == 1:
            from recsys.online.new_items import say_grown_items

            say_grown_items(cfg.run[0], cfg.checkpoint)
        return
    if len(cfg.run) != 1:
        raise UserError(f"run={cfg.run}: name one run to add items to")
    from recsys.online.new_items import run_with_items

    with run_with_items(cfg.run[0], cfg.items, cfg.checkpoint) as run:
        cfg.run = [run]
        _predict(cfg)


def _predict(cfg: PredictConfig) -> None:
    from recsys.online.predictor import input_files

    if cfg.user is not None:
        _recommend_to(cfg)
        return
    if cfg.item is not None:
        _list_similar(cfg)
        return
    if cfg.input == MISSING:
        hint = "or one user, user=42, or one item, item=7"
        raise UserError(f"input: name files of raw rows to predict, such as input=rows.tsv; {hint}")
    files = input_files(cfg.input)
    cfg.run = [str(local_run(run, checkpoint=cfg.checkpoint)) for run in cfg.run]
    from recsys.base.packages import check_versions  # these imports take seconds; a missing file is said before
    from recsys.data.prepare.writer import bad_rows_file
    from recsys.online.predictor import predict_files, predict_mean
    from recsys.training.run_dir import choose_checkpoint, open_run

    first, *others = runs = cfg.run
    trained, path = open_run(first)
    output = Path(cfg.output)
    raw: dict[str, Any] = {"inputs": files, "root": trained.data.root, "files": trained.data.source.files}
    check_output(output, (".parquet",), **raw)
    check_output(bad_rows_file(output), (".csv",), **raw)
    choose_checkpoint(path, cfg.checkpoint)
    for run in runs if others else ():
        run_cfg, folder = open_run(run)
        run_cfg.kind.check_averaged(run)
        choose_checkpoint(folder, cfg.checkpoint)
    check_versions()
    size = cfg.batch_size or trained.trainer.eval_batch_size
    if trained.kind.scores_rows:
        for key in ("k", "filter_history"):
            if getattr(cfg, key) is not None:
                why = "applies to retrieval models; this run's model gives a probability for each row, so leave it out"
                raise UserError(f"{key}={getattr(cfg, key)}: {why}")
        how: dict[str, Any] = {"checkpoint": cfg.checkpoint, "batch_size": size, "allow_unknown": cfg.allow_unknown}
        scored = predict_mean(runs, files, output, **how) if others else predict_files(first, files, output, **how)
        _report_scores(cfg, scored)
    else:
        from recsys.online.recommender import recommend_files

        how = {"checkpoint": cfg.checkpoint, "k": cfg.k, "filter_history": cfg.filter_history, "batch_size": size}
        how["allow_unknown"] = cfg.allow_unknown
        summary = recommend_files(first, files, output, **how)
        if summary["bad_rows"]:
            reasons = f"were left out of the histories; {summary['bad_rows_file']} has the reasons"
            say(f"{summary['bad_rows']} rows could not be read and {reasons}")
        say(f"{summary['groups']:,} lists of at most {summary['k']} items written to {cfg.output}")


def _recommend_to(cfg: PredictConfig) -> None:
    """Print the items for one user, best first."""
    from recsys.data.prepare.plan_build import raw_files
    from recsys.online.predictor import input_files

    trained, recommender = _retrieval_run(cfg, f"user={cfg.user}")
    files = raw_files(trained.data) if cfg.input in (MISSING, []) else input_files(cfg.input)
    _print_list(f"items for user {cfg.user}", recommender.recommend_to(cfg.user, files, cfg.k).iter_rows())


def _list_similar(cfg: PredictConfig) -> None:
    """Print the items most like one or several, best first."""
    if cfg.filter_history is not None:
        raise UserError(f"filter_history={cfg.filter_history}: applies to histories, and item= has none; leave it out")
    from recsys.online.similar_items import similar_items

    given = cfg.item if isinstance(cfg.item, list) else [cfg.item]
    _, recommender = _retrieval_run(cfg, f"item={cfg.item}")
    for item, items, scores in similar_items(recommender, given, cfg.k or 10).iter_rows():
        _print_list(f"items like {item}", zip(items, scores, strict=True))


def _retrieval_run(cfg: PredictConfig, asked: str) -> tuple[RunConfig, Recommender]:
    """Return the config of the only run, and its model. asked: for whose lists, for messages"""
    from recsys.online.recommender import Recommender
    from recsys.training.run_dir import choose_checkpoint, open_run

    if len(cfg.run) != 1:
        raise UserError(f"run={cfg.run}: name one run to list items for {asked}")
    run = str(local_run(cfg.run[0], checkpoint=cfg.checkpoint))
    trained, path = open_run(run)
    if trained.kind.scores_rows:
        raise UserError(f"{asked}: applies to retrieval models; this run's model gives a probability for each row")
    choose_checkpoint(path, cfg.checkpoint)
    return trained, Recommender.load(run, cfg.checkpoint)


def _print_list(title: str, items: Iterable[Sequence[Any]]) -> None:
    from rich.table import Table

    table = Table("place", "item", "score", title=title, title_justify="left")
    for place, (item, score) in enumerate(items, start=1):
        table.add_row(str(place), str(item), f"{score:.4f}")
    results.print(table)


def _report_scores(cfg: PredictConfig, summary: dict[str, Any]) -> None:
    """Print the shares of unknown ids and the numbers of scored and bad rows."""
    from rich.table import Table

    table = Table(title="ids out of vocabulary (never seen in training, or too rare)", title_justify="left")
    table.add_column("feature")
    table.add_column("share", justify="right")
    for name, share in summary["out_of_vocabulary"].items():
        table.add_row(name, f"{share:.2%}")
    if table.rows:
        results.print(table)
    if summary["bad_rows"]:
        where = f"their probability is null in the output, and {summary['bad_rows_file']} has the reasons"
        say(f"{summary['bad_rows']} rows could not be read: {where}")
    say(f"{summary['rows']:,} rows scored; written to {cfg.output}")


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("predict", _command)


if __name__ == "__main__":
    main()
