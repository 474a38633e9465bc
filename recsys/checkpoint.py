"""python -m recsys.checkpoint inspect|reshard|export-embeddings RUN_DIR [checkpoint=best] [key=value ...]

    inspect RUN_DIR                                                  show tables, sizes and plan without loading them
    reshard RUN_DIR sharding=columnwise trainer.devices=4 output=RUN_DIR_2    rewrite the run for another sharding plan
    export-embeddings RUN_DIR output=DIR [format=safetensors] [tables=[cat_*]]   write tables with their vocabularies

All three run in one process and read tables block by block, so that memory use does not grow with the tables.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import MISSING

from recsys.base.console import bar, results, say
from recsys.base.errors import UserError, did_you_mean
from recsys.cli import command_line
from recsys.files import starts
from recsys.files.atomic import whole_file, whole_folder, write_json
from recsys.files.outputs import check_output
from recsys.job.fetched_runs import local_run
from recsys.schema.command_schemas import CheckpointToolConfig, ClusterConfig

if TYPE_CHECKING:
    from recsys.job.run_config import RunConfig
    from recsys.sharding.stored_checkpoint import StoredCheckpoint

Entries = dict[str, dict[str, Any]]  # of tables in plan.json, by name
Blocks = Callable[[dict[str, Any]], Iterator["np.ndarray"]]  # the rows of a table
ACTIONS = ("inspect", "reshard", "export-embeddings")
USAGE = f"python -m recsys.checkpoint {'|'.join(ACTIONS)} RUN_DIR [key=value ...]"


def inspect(stored: StoredCheckpoint) -> dict[str, Any]:
    """Return a summary: step, world size, plan, and the bytes of tables, their optimizer state and dense tensors."""

    def size(key: str) -> int:
        if key not in stored.tensors:
            raise UserError(f"{stored.path}: plan.json and .metadata are of different checkpoints: only one has {key}")
        meta = stored.tensors[key]
        return int(np.prod(meta.size)) * meta.properties.dtype.itemsize

    tables, seen = [], set()
    for e in stored.plan["tables"]:
        states = [k for k in stored.tensors if k.startswith(f"tables.{e['parameter']}/")]
        weight = f"model.{e['parameter']}"
        seen |= {weight, *states}
        entry = {k: e[k] for k in ("table", "rows", "dim", "width", "type", "kernel")}
        state = {k.rpartition("/")[2]: size(k) for k in states}
        tables.append(entry | {"ranks": len(set(e["ranks"])) or 1, "bytes": size(weight), "optimizer": state})
    rest = {k.removeprefix("model."): stored.size(k) for k in stored.tensors if k not in seen}
    on_disk = sum(f.stat().st_size for f in stored.path.iterdir())
    summary = {k: stored.plan[k] for k in ("step", "world_size", "optimizer")}
    dense = {"tensors": rest, "bytes": sum(size(f"model.{k}") for k in rest)}
    return summary | {"path": str(stored.path), "tables": tables, "dense": dense, "bytes_on_disk": on_disk}


def _show(summary: dict[str, Any]) -> None:
    """Print what `inspect` returns as a table."""
    from rich.table import Table

    title = f"step {summary['step']}, written by {summary['world_size']} processes, {summary['optimizer']}"
    table = Table(title=title, title_justify="left")
    for name in ("table", "rows", "dim", "MB", "optimizer state", "state MB", "type", "kernel", "ranks"):
        table.add_column(name, justify="left" if name in ("table", "optimizer state", "type", "kernel") else "right")
    for t in sorted(summary["tables"], key=lambda t: -t["bytes"]):
        dim = f"{t['dim']}" + (f" (of {t['width']})" if t["width"] != t["dim"] else "")
        sizes = f"{t['bytes'] / 1e6:,.2f}", ", ".join(t["optimizer"]), f"{sum(t['optimizer'].values()) / 1e6:,.2f}"
        table.add_row(t["table"], f"{t['rows']:,}", dim, *sizes, t["type"], t["kernel"], str(t["ranks"]))
    results.print(table)
    dense = summary["dense"]
    say(
        f"{len(summary['tables'])} tables, {len(dense['tensors'])} dense tensors ({dense['bytes'] / 1e6:,.2f} MB); "
        f"{summary['bytes_on_disk'] / 1e6:,.2f} MB in {summary['path']}"
    )


def reshard(run: Path, stored: StoredCheckpoint, cfg: RunConfig, output: Path, devices: int) -> None:
    """Write a run folder whose checkpoint is sharded for `devices` processes under cfg.sharding.

    The new run can be resumed, evaluated and used for prediction. Raises UserError if no plan fits.
    """
    import torch
    from torchrec.distributed.planner.types import PlannerError

    from recsys.data.features import Fitted
    from recsys.evaluation import calibration
    from recsys.files.run_files import CONFIG, DATA, STARTS
    from recsys.interface.features import FeatureSpec
    from recsys.job.kinds import meta_task
    from recsys.sharding.optimizers import sparse_optimizer
    from recsys.sharding.planner import (
        describe,
        make_planner,
        quiet_torchrec,
        topology,
        use_dense_kernels,
    )
    from recsys.sharding.reshard import rewrite
    from recsys.sharding.tables import tables
    from recsys.training.run_dir import write_config, write_manifest

    sharding, sparse = cfg.sharding, sparse_optimizer(cfg.optim.sparse)
    features = FeatureSpec.load(run / "features.json")
    task = meta_task(cfg, features)
    # more memory than any table needs, because the plan is not for this machine
    any_cluster = ClusterConfig(name="", device="cpu", devices=devices, ddr_gib=1 << 30)
    with quiet_torchrec():
        batch_size = max(cfg.trainer.batch_size // devices, 1)
        planner, sharders = make_planner(task, sharding, sparse, topology(any_cluster), batch_size)
        try:
            plan = planner.plan(task, sharders)
        except PlannerError as e:
            why = "with the allowed sharding types; allow more in sharding.types"
            raise UserError(f"sharding: no plan for {devices} processes {why}") from e
    use_dense_kernels(plan, sparse, torch.device("cpu"))
    entries = describe(plan, tables(task))
    with whole_folder(output, new=True) as building:
        (building / "checkpoints").mkdir()
        rewrite(stored, building / "checkpoints" / stored.path.name, entries, devices)
        Fitted.copy(run, building)
        write_json(building / "plan.json", {"world_size": devices, "tables": entries})
        write_config(building / CONFIG, cfg.changed({"run_dir": str(output), "trainer.devices": devices}))
        for name in (DATA, STARTS):
            if (run / name).exists():
                shutil.copy(run / name, building)
        labels = calibration.load(run, features.labels, stored.path)  # none of another checkpoint
        if any(label.is_calibrated for label in labels):
            calibration.save(building, labels, stored.path)
        write_manifest(building)


def export_embeddings(
    run: Path, stored: StoredCheckpoint, output: Path, *, format: str, globs: list[str]
) -> list[Path]:
    """Write each table as Parquet (id, value, count, embedding), or all tables to one safetensors file.

    Vocabularies are written next to a safetensors file. value and count come from the training split. They are null for
    rows without a value, such as row 0 (rare and unseen values).

    Args:
        globs: patterns of the names of tables; empty for all tables.
    """
    from recsys.sharding.tables import rows_of_a_block

    names = {e["table"].removeprefix("t_"): e for e in stored.plan["tables"]}
    for glob in globs:
        if not any(fnmatchcase(n, glob) for n in names):
            raise UserError(f"tables={glob}: matches no table{did_you_mean(glob, names)}")
    chosen = {n: e for n, e in names.items() if not globs or any(fnmatchcase(n, g) for g in globs)}
    output.mkdir(parents=True, exist_ok=True)
    with bar("exporting", sum(e["rows"] for e in chosen.values())) as shown:

        def rows(entry: dict[str, Any]) -> Iterator[np.ndarray]:
            step = rows_of_a_block(entry["width"])
            for first in range(0, entry["rows"], step):
                n = min(step, entry["rows"] - first)
                yield stored.read(f"model.{entry['parameter']}", first, n)[:, : entry["dim"]].contiguous().numpy()
                shown.advance(n)

        return EMBEDDING_FORMATS[format](run, output, chosen, rows)


def _vocabulary(run: Path, entry: dict[str, Any]) -> Path:
    folder, _, name = entry["vocabulary"].rpartition("/")
    return run / folder / "vocabularies" / f"{name}.parquet"


def _write_parquet(run: Path, output: Path, chosen: Entries, rows: Blocks) -> list[Path]:
    import polars as pl
    import pyarrow.parquet as pq

    written = []
    for name, entry in chosen.items():
        vocabulary = pl.DataFrame(schema={"value": pl.String, "count": pl.UInt32, "id": pl.Int32})
        if _vocabulary(run, entry).exists():
            vocabulary = pl.read_parquet(_vocabulary(run, entry), glob=False)
        writer, first = None, 0
        written.append(output / f"{name}.parquet")
        with whole_file(written[-1]) as building:
            for block in rows(entry):
                ids = pl.int_range(first, first + len(block), dtype=pl.Int32, eager=True).alias("id")
                frame = ids.to_frame().join(vocabulary, on="id", how="left", maintain_order="left")
                vectors = pl.Series("embedding", block, dtype=pl.Array(pl.Float32, block.shape[1]))
                table = frame.select("id", "value", "count", vectors).to_arrow()
                writer = writer or pq.ParquetWriter(building, table.schema)
                writer.write_table(table)
                first += len(block)
            assert writer is not None
            writer.close()
    return written


def _write_safetensors(run: Path, output: Path, chosen: Entries, rows: Blocks) -> list[Path]:
    """Write a safetensors file (a JSON header, then the bytes) block by block.

    The safetensors library would need all tensors in memory.
    """
    header, at = {}, 0
    for name, e in chosen.items():
        size = e["rows"] * e["dim"] * 4
        header[name] = {"dtype": "F32", "shape": [e["rows"], e["dim"]], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = output / "embeddings.safetensors"
    written = [path]
    with whole_file(path) as building, building.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for e in chosen.values():
            for block in rows(e):
                f.write(block.tobytes())
    for name, e in chosen.items():
        if _vocabulary(run, e).exists():
            written.append(Path(shutil.copy(_vocabulary(run, e), output / f"{name}.vocabulary.parquet")))
    return written


EMBEDDING_FORMATS = {"parquet": _write_parquet, "safetensors": _write_safetensors}


def _command(cfg: CheckpointToolConfig) -> None:
    if cfg.action == MISSING or cfg.run == MISSING:
        missing = "action" if cfg.action == MISSING else "RUN_DIR"
        raise UserError(f"missing {missing}; usage: {USAGE}")
    cfg.run = str(local_run(cfg.run, checkpoint=cfg.checkpoint))
    from recsys.job.check_built import check_job
    from recsys.sharding.stored_checkpoint import StoredCheckpoint, check_checkpoint
    from recsys.training.run_dir import choose_checkpoint, open_run

    run_cfg, run = open_run(cfg.run)
    if run_cfg.kind.fitted_at_once:
        why = "its model was fitted at once and has no embedding tables"
        raise UserError(f"run={cfg.run}: {why}; the whole model is in {run}/checkpoints/*/")
    stored = StoredCheckpoint(choose_checkpoint(run, cfg.checkpoint))
    if cfg.action == "inspect":
        _show(inspect(stored))
        if (made := starts.line(run)) is not None:
            say(f"made by {made}")
        return
    check_checkpoint(stored.path)
    if cfg.output is None:
        raise UserError("output: must be set to the folder to write; add output=FOLDER")
    output = Path(cfg.output)
    check_output(output, root=run_cfg.data.root, files=run_cfg.data.source.files)
    if cfg.action == "export-embeddings":
        written = export_embeddings(run, stored, output, format=cfg.format, globs=cfg.tables)
        say(f"{len(written)} files written to {output}")
        return
    if output.exists():
        raise UserError(f"output={output}: already exists; name a folder that does not exist yet")
    devices = cfg.trainer.devices or stored.plan["world_size"]
    changes: dict[str, Any] = {
        "trainer.devices": 1
    }  # check_job() must not require as many devices here as the plan has
    if cfg.sharding is not None:
        changes["sharding"] = asdict(cfg.sharding)
    run_cfg = run_cfg.changed(changes)
    if devices < 1 or run_cfg.trainer.batch_size % devices:
        raise UserError(f"trainer.batch_size={run_cfg.trainer.batch_size} is not divisible by {devices} processes")
    check_job(run_cfg, trains=False)
    reshard(run, stored, run_cfg, output, devices)
    _show(inspect(StoredCheckpoint(output / "checkpoints" / stored.path.name)))
    say(f"resume it with: python -m recsys.train ... resume={output}")


def main() -> None:
    """Run the command with this process's overrides; the action and RUN_DIR come first, or as action= and run=."""
    command_line.run("checkpoint", _command, command_line.named_words(("action", "run"), f"usage: {USAGE}"))


if __name__ == "__main__":
    main()
