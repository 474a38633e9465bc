"""Recognise the files that commands write, which are never raw files."""

from pathlib import Path

DEFAULT = "outputs"  # the folder of runs and prepared data, unless the config names others


class Outputs:
    """The folders under `root` that hold runs, sweeps or prepared data.

    root: the folder of raw files
    prepared: data.prepared
    """

    def __init__(self, root: Path, prepared: str) -> None:
        self._root, self._known = root, {Path(DEFAULT).resolve(), Path(prepared).resolve()}
        self._seen: dict[Path, bool] = {}

    def contains(self, file: Path) -> bool:
        """Return whether a folder between the root and the file holds a run, a sweep or prepared data."""
        for folder in file.parents:
            if folder not in self._seen and self._root in folder.parents:
                self._seen[folder] = is_output(folder) or folder.resolve() in self._known
            if self._seen.get(folder):
                return True
        return False


def is_output(folder: Path) -> bool:
    """Return whether the folder is that of a run, a sweep or prepared data."""
    is_run = (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()
    return is_run or any((folder / name).is_file() for name in ("sweep.json", "prepared.json"))
