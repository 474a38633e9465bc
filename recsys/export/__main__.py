"""python -m recsys.export run=RUN_DIR output=DIR [format=[onnx,single_graph]] [tables=int8] [triton=true]
python -m recsys.export run=RUN_DIR output=DIR items=items_today.csv
python -m recsys.export run=RUN_DIR output=DELTA delta_from=ARTEFACT
python -m recsys.export verify DIR
python -m recsys.export apply ARTEFACT DELTA output=DIR

Writes a trained model, its transforms and its tables as one folder, which `python -m recsys.serve DIR` serves, and
proves that it gives the outputs of the run. `verify` repeats the proof anywhere. With `delta_from`, it writes only what
differs from an artefact; `apply` makes the full artefact of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from recsys.base.console import say
from recsys.base.errors import UserError, did_you_mean
from recsys.base.packages import check_extra
from recsys.base.secrets import mask_text
from recsys.cli import command_line
from recsys.export.artefact.folder import is_artefact
from recsys.files.user_files import check_name
from recsys.job.fetched_runs import local_run
from recsys.schema.command_schemas import ExportConfig

USAGE = "python -m recsys.export run=RUN_DIR output=DIR, or python -m recsys.export verify DIR"


def _command(cfg: ExportConfig) -> None:
    if cfg.action == "verify":
        if cfg.artefact is None:
            raise UserError(f"verify: name the folder of an artefact; usage: {USAGE}")
        from recsys.export.artefact.load_artefact import verify

        found = verify(Path(cfg.artefact))
        agree = f"{found.rows:,} rows agree within {found.difference:.1e}"
        say(f"{cfg.artefact}: {agree} (allowed: {found.tolerance:.0e})")
    elif cfg.action == "apply":
        from recsys.export.artefact.apply_delta import apply_delta

        if cfg.artefact is None or cfg.delta is None or cfg.output == MISSING:
            hint = "python -m recsys.export apply BASE DELTA output=DIR"
            raise UserError(f"apply: name an artefact, a delta and output: {hint}")
        output = Path(cfg.output)
        _check_free(output)
        if output.resolve() in (Path(cfg.artefact).resolve(), Path(cfg.delta).resolve()):
            raise UserError(f"output={output}: is read by this command; name another folder")
        apply_delta(Path(cfg.artefact), Path(cfg.delta), output)
        say(f"{output}: is the artefact that {cfg.delta} makes of {cfg.artefact}; all digests are as exported")
    else:
        write(cfg)


def write(cfg: ExportConfig) -> None:
    """Write an artefact as the config of the command says."""
    formats = _checked(cfg)
    if cfg.items is None:
        _write(cfg, formats)
        from recsys.online.new_items import say_grown_items

        say_grown_items(cfg.run, cfg.checkpoint)
        return
    from recsys.online.new_items import run_with_items

    with run_with_items(cfg.run, cfg.items, cfg.checkpoint) as run:
        cfg.run = run
        _write(cfg, formats)


def _write(cfg: ExportConfig, formats: tuple[str, ...]) -> None:
    from recsys.base.packages import check_versions
    from recsys.files.outputs import check_output
    from recsys.online.predictor import input_files
    from recsys.training.run_dir import choose_checkpoint, open_run

    trained, run = open_run(cfg.run)
    output = Path(cfg.output)
    check_output(output, root=trained.data.root, files=trained.data.source.files)
    checkpoint = choose_checkpoint(run, cfg.checkpoint)
    files = tuple(input_files(cfg.rows, "rows"))
    check_versions()
    from recsys.export.exported import ExportSource, Form
    from recsys.export.triton.repository import Options
    from recsys.export.write_artefact import write_artefact

    name = cfg.name or str(trained.model["_target_"]).rpartition(".")[2].lower()
    triton = Options(dense_backend=cfg.dense_backend, python_path=cfg.python_path) if cfg.triton else None
    index = cfg.index, cfg.index_url, cfg.recall_target
    form = Form(name, str(cfg.version), cfg.precision, cfg.tables, formats, triton, *index, cfg.events_until)
    source = ExportSource(run, trained, checkpoint, files)
    if (base := cfg.delta_from) is None:
        _show(write_artefact(source, form, output))
        size = sum(f.stat().st_size for f in output.rglob("*") if f.is_file() and "triton" not in f.parts)
        say(f"artefact of {size / 1e6:,.1f} MB in {output}; serve it with: python -m recsys.serve {output}")
        return
    from recsys.export.write_delta import export_delta

    written = export_delta(source, form, Path(base), output)
    _show(written.about)
    if written.is_delta:
        sizes = f"{written.bytes / 1e6:,.1f} MB of {written.full_bytes / 1e6:,.1f}"
        say(f"delta of {written.rows:,} rows in {output}: {sizes}")
        say(f"serve it beside {base}, or apply it: python -m recsys.export apply {base} {output} output=DIR")


def _checked(cfg: ExportConfig) -> tuple[str, ...]:
    """Check what needs no slow import; return the forms beside the ONNX graph."""
    from recsys.index.build_index import INDEX_KINDS, check_index_server

    check_extra("export", "recsys.export", "onnx", "onnxscript", "onnxruntime")
    for key in ("run", "output"):
        if getattr(cfg, key) == MISSING:
            raise UserError(f"{key}: is missing; usage: {USAGE}")
    check_name("model" if cfg.name is None else str(cfg.name), "name", "clicks")
    check_name(str(cfg.version), "version", "1")
    formats = cfg.format
    if cfg.index not in (None, "auto", *INDEX_KINDS):
        raise UserError(f"index={cfg.index}: no such choice{did_you_mean(str(cfg.index), ('auto', *INDEX_KINDS))}")
    if cfg.index_url is not None and cfg.index is None:
        raise UserError(f"index_url={mask_text(cfg.index_url)}: also write index=milvus")
    if cfg.index is not None:
        check_index_server(cfg.index, cfg.index_url)
    _check_free(Path(cfg.output))
    if cfg.delta_from is not None and Path(cfg.delta_from).resolve() == Path(cfg.output).resolve():
        raise UserError(f"output={cfg.output}: is the artefact that the delta is based on; name another folder")
    try:
        has_zone = cfg.events_until is None or datetime.fromisoformat(str(cfg.events_until)).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise UserError(f"events_until={cfg.events_until}: must be a time with its zone, such as 2026-03-07T12:00:00Z")
    if cfg.triton and cfg.dense_backend == "pytorch" and "torchscript" not in formats:
        raise UserError("dense_backend=pytorch: needs format=torchscript; add it to format=")
    cfg.run = str(run := local_run(cfg.run, checkpoint=cfg.checkpoint))
    checkpoints = sorted(p.name for p in (run / "checkpoints").glob("[!.]*"))
    if not checkpoints:
        hint = "train it to its first checkpoint"
        raise UserError(f"run={run}: has no checkpoint, so there is nothing to export; {hint}")
    if cfg.checkpoint not in ("best", "last", *checkpoints):
        hint = f"write best, last or one of: {', '.join(checkpoints)}"
        raise UserError(f"checkpoint={cfg.checkpoint}: not in {run}/checkpoints; {hint}")
    return tuple(f for f in formats if f != "onnx")


def _check_free(output: Path) -> None:
    from recsys.export.artefact.apply_delta import is_delta

    if output.exists() and not is_artefact(output) and not is_delta(output):
        raise UserError(f"output={output}: already exists, and is not an artefact; name another folder")


def _show(about: Mapping[str, Any]) -> None:
    """Print the metrics of the run and of the artefact on the test split."""
    from recsys.training.results import show_tables

    measured = about["metrics"].get("artefact") or {}
    run = {n: v for n, v in about["metrics"]["run"].items() if n in measured}
    if run:
        show_tables({"test, run": run, "test, artefact": {n: measured[n] for n in run}})


def main() -> None:
    """Run the command with this process's overrides; `verify DIR` or `apply BASE DELTA` may come first."""
    command_line.run("export", _command, command_line.named_words(("action", "artefact", "delta"), f"usage: {USAGE}"))


if __name__ == "__main__":
    main()
