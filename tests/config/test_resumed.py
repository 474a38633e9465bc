"""resume=RUN uses the run's config, in which the command line replaces keys."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from recsys.config.compose import compose, load_config
from recsys.job.config_of import composed_config

GIVEN = ["model=dcnv2", "model.dim=8", "data.sample.rows=5000", "trainer.max_epochs=3", "sharding=rowwise"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    OmegaConf.save(compose("train", [*GIVEN, f"run_dir={folder}"]), folder / "config.yaml", resolve=True)
    return folder


def resumed(run: Path, *overrides: str) -> DictConfig:
    given = [*overrides, f"resume={run}"]
    return composed_config(compose("train", given), given)


def changed(run: Path, *overrides: str) -> dict[str, object]:
    """Return the top-level keys that differ from the run's, without those of a start."""
    old, new = load_config(run / "config.yaml"), resumed(run, *overrides)
    assert (new.run_dir, new.resume) == (None, str(run))
    return {str(k): new[k] for k in new if new[k] != old[k] and k not in ("run_dir", "resume")}


def test_alone_it_is_the_config_of_the_run(run: Path) -> None:
    assert changed(run) == {}
    assert changed(run, *GIVEN) == {}


def test_keys_replace_those_of_the_run(run: Path) -> None:
    new = changed(run, "trainer.max_epochs=5", "trainer.devices=2", "resume_on_changed_data=true")
    assert new.keys() == {"trainer", "resume_on_changed_data"}
    assert (new["trainer"].max_epochs, new["trainer"].devices) == (5, 2)  # type: ignore[attr-defined]
    assert changed(run, "trainer.max_epochs=1").keys() == {"trainer"}  # the default is a value, too


@pytest.mark.slow
def test_a_choice_replaces_its_key(run: Path) -> None:
    assert changed(run, "sharding=columnwise").keys() == {"sharding"}
    assert changed(run, "model=dlrm")["model"] == compose("train").model  # opening the run refuses it
    assert changed(run, "model=dcnv2")["model"].dim == compose("train", ["model=dcnv2"]).model.dim  # type: ignore[attr-defined]


def test_a_choice_of_several_keys_replaces_those_that_it_sets(run: Path) -> None:
    assert changed(run, "schedule=plateau").keys() == {"optim"}
    assert resumed(run, "schedule=plateau").trainer.max_epochs == 3


def test_overrides_that_add_and_remove(run: Path) -> None:
    new = resumed(run, "+logger.mine={_target_: a.B}", "~data.sparse.cat_3", "++engine.options.x=1")
    assert new.logger.mine == {"_target_": "a.B"}
    assert new.engine.options.x == 1
    assert "cat_3" not in new.data.sparse and "cat_4" in new.data.sparse
