"""The examples of docs/how_to/add/model.md train and, as retrieval models must, can be exported."""

import re
import sys
from pathlib import Path

import pytest

import recsys
from recsys.export.artefact.folder import is_artefact

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "add" / "model.md").read_text()


def example(name: str) -> str:
    """Return the block of Python that defines a class, without the indentation of a list."""
    [code] = [c for c in re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.M | re.S) if f"class {name}" in c]
    margin = len(code) - len(code.lstrip())
    return "\n".join(line[margin:] for line in code.splitlines()) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("MyModel", ["data=criteo", "data.sample.rows=2000"]),
        ("MyRetriever", ["data=sample_sequences", "data.sample.rows=2000"]),
    ],
)
def test_an_example_trains_and_is_exported(
    name: str, data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(recsys.__file__).parents[1]}")  # of the export's own process
    module = f"own_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(example(name))
    (tmp_path / "conf" / "model").mkdir(parents=True)
    found = [y for y in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if f".{name}\n" in y]
    yaml = found[0] if found else f"_target_: recsys.models.{name}\ndim: 16\n"
    yaml = re.sub(r"_target_: .*", f"_target_: {module}.{name}", yaml)
    (tmp_path / "conf" / "model" / "own.yaml").write_text(yaml)
    run = recsys.train(["model=own", *data, "trainer.max_epochs=1", "trainer.threads=1", "run_dir=run"])
    assert run.metrics["test"]
    assert is_artefact(run.export("out"))
    sys.modules.pop(module, None)
