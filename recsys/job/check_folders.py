"""Check that a training can write its folders, before it reads data."""

import os
from pathlib import Path
from tempfile import mkdtemp

from recsys.base.errors import UserError
from recsys.job.run_config import RunConfig

MAX_NAME_BYTES = 255  # that file systems take


def check_folders(cfg: RunConfig, run: str | None) -> None:
    """Raise UserError if a training cannot write its folders, or one of them holds the raw files.

    run: the folder of a new run, as the config has it
    """
    _check_writable("run_dir", run or "outputs")
    _check_writable("data.prepared", cfg.data.prepared)
    if cfg.data.root is None or "://" in cfg.data.root:
        return
    root = Path(cfg.data.root).expanduser().resolve()
    if root == Path(cfg.data.prepared).resolve():
        raise UserError(
            f"data.prepared={cfg.data.prepared}: is data.root, the folder of raw files; name another folder"
        )
    if run is not None and (Path(run).resolve() == root or Path(run).resolve() in root.parents):
        why = f"contains the raw files (data.root={cfg.data.root}), and files in a run's own folder are not data"
        raise UserError(f"run_dir={run}: {why}; name another folder")


def _check_writable(key: str, name: str) -> None:
    """Raise UserError if the folder can neither be written nor created. Creates and removes a folder to find out."""
    try:
        existing = next(p for p in (Path(name).absolute(), *Path(name).absolute().parents) if os.path.lexists(p))
        if not existing.is_dir():
            raise UserError(f"{key}={name}: {existing} is not a folder; name a folder")
        os.rmdir(mkdtemp(prefix=".recsys-", dir=existing))
        for part in Path(name).parts:  # no file system takes these names
            if "\0" in part:
                raise OSError(0, "a name contains the character NUL")
            if len(os.fsencode(part)) > MAX_NAME_BYTES:
                raise OSError(0, f"the name {part[:20]}... is longer than {MAX_NAME_BYTES} bytes")
    except (OSError, ValueError) as e:
        if isinstance(e, UserError):
            raise
        why = e.strerror if isinstance(e, OSError) else str(e)
        text = "".join(c if c.isprintable() else "?" for c in name)
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise UserError(f"{key}={shown}: cannot be written: {why}; name another folder") from e
