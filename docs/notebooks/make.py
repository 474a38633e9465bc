"""python docs/notebooks/make.py [NAME...]: execute the notebooks of this folder and write their outputs into them.

Each notebook runs in an empty temporary folder, whose files are removed afterwards, with the Python that runs this
script. NAME is a notebook's name without .ipynb, by default all. What varies from run to run for no reason is left out:
ids of cells, times of execution, and the lines that progress has overwritten. Prints the seconds of each notebook.
"""

import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 1200  # time limit of a cell


def execute(path: Path, folder: Path) -> Any:
    """Return the notebook with the outputs of running it in a folder. Raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    paths = {"PYTHONPATH": HERE.parents[1], "PATH": Path(sys.executable).parent}  # of recsys and of `python` in a cell
    env = {name: os.pathsep.join(filter(None, (str(path), os.environ.get(name)))) for name, path in paths.items()}
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, resources=resources, coalesce_streams=True)
    client.execute(env=os.environ | env)
    return _lasting(notebook)


def _lasting(notebook: Any) -> Any:
    """Return the notebook without what varies from run to run for no reason."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":  # a terminal ends its lines so, and rich fills them with spaces
                lines = re.sub(r"[ \r]+\n", "\n", output.text)
                output.text = re.sub("([━─])\ufffd{1,3}", r"\1\1", lines)  # IPython cuts long outputs within letters
    return notebook


def _cpu_seconds() -> float:
    """Return the CPU seconds of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    for file in [HERE / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        start, cpu = time.monotonic(), _cpu_seconds()
        with tempfile.TemporaryDirectory() as work:
            nbformat.write(execute(file, Path(work)), file)
        print(f"{file.name}: {time.monotonic() - start:.0f} s, {_cpu_seconds() - cpu:.0f} s of CPU")
