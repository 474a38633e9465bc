"""Fit a model by one call, as boosted trees and closed-form models are, and measure it."""

import time

from recsys.base import interrupts, job_time
from recsys.base.console import say
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks
from recsys.job.kinds import ClosedFormKind, FittedRankingKind
from recsys.job.run_config import RunConfig
from recsys.training import fitted_ranking, fitted_retrieval
from recsys.training.loggers import build_loggers
from recsys.training.results import RunResults
from recsys.training.run_dir import RunFolder

FITTERS = {FittedRankingKind: fitted_ranking, ClosedFormKind: fitted_retrieval}


def fit_at_once(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> RunResults:
    """Fit the model, calibrate it, and measure both held-out splits. ranks: of one process"""
    path = folder.path
    interrupts.advise(f"start again with resume={path}; nothing is kept before the model is fitted")
    methods = FITTERS[type(cfg.kind)]
    start = time.monotonic()
    with job_time.spend("training"):
        model = methods.fit_model(cfg, prepared)
    seconds = time.monotonic() - start
    say(f"fitted in {seconds:.1f} s")
    with job_time.spend("saving"):
        checkpoint = methods.save(model, path)
    names = [s for s in ("test", "validation") if prepared.rows(s)]
    if cfg.calibration != "none" and "validation" in names:
        fitted_ranking.calibrate(model, cfg, prepared, path)
    with job_time.spend("testing"):
        measured = {s: methods.measure_split(model, cfg, prepared, s, path, write=s == "test") for s in names}
    splits = {split: metrics for split, (metrics, _) in measured.items()}
    rows = prepared.rows("train")
    train = {"samples": rows, "seconds": seconds, "samples_per_second": rows / max(seconds, 1e-9)}
    loggers = build_loggers(cfg, path, ranks, None)  # now: it begins metrics.csv anew, which a fit that fails keeps
    for logger in loggers:
        for split, metrics in splits.items():
            logger.log_metrics({f"{split}/{name}": value for name, value in metrics.items()}, step=0)
    return RunResults(splits, train, checkpoint, loggers, measured["test"][1] if "test" in measured else {})
