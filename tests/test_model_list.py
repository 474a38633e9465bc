"""python -m recsys.models: what it lists, and what fits a data set."""

import sys

import pytest

from recsys import model_list
from recsys.config.compose import conf_dir


def listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["recsys.models", *arguments])
    with pytest.raises(SystemExit) as done:
        model_list.run()
    out = capsys.readouterr()
    return int(done.value.code or 0), out.out, out.err


@pytest.mark.slow
def test_every_model_has_a_kind_and_a_paper() -> None:
    found = list(model_list.entries())
    assert [e.name for e in found] == sorted(f.stem for f in (conf_dir() / "model").glob("*.yaml"))
    kinds = {e.name: e.kind for e in found}
    assert (kinds["dlrm"], kinds["sasrec"], kinds["ease"]) == ("ranking", "retrieval", "closed form")
    plain = {"dnn", "lr", "popularity"}  # older than any paper that could be cited
    assert {e.name for e in found if "https://" not in e.paper} == plain


def test_models_that_fit_a_data_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = listed(monkeypatch, capsys, "data=sample_sequences")
    [command] = [line for line in out.splitlines() if line.startswith("Train all that fit: ")]
    names = command.partition("-m model=")[2].split()[0].split(",")
    assert code == 0 and {"sasrec", "gru4rec", "ease"} <= set(names) and "dlrm" not in names
    assert command.endswith(" data=sample_sequences")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=critoe"], "error: data=critoe: no such choice; did you mean criteo?"),
        (["model=dlrm"], "error: model=dlrm: all models are listed; leave it out"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = listed(monkeypatch, capsys, *arguments)
    assert (code, err.strip()) == (2, message)
