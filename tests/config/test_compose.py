"""Hydra composes from schemas that are registered once."""

import copy

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore

from recsys.config.compose import compose, conf_dir, typed


def test_schemas_are_not_copied_for_each_config() -> None:
    """Copies were two thirds of the time of --help. Hydra still copies its repository, so that this is needed."""
    compose("train")
    store = ConfigStore.instance()
    assert copy.deepcopy(store) is store
    repository = ConfigLoaderImpl(create_config_search_path(str(conf_dir()))).repository
    assert CachingConfigRepository(repository).delegate is not repository


def test_a_config_that_is_changed_leaves_the_next_one_alone() -> None:
    first = compose("train", ["trainer.batch_size=7", "model.dim=3"])
    first.trainer.max_epochs = 99
    second = compose("train")
    assert second.trainer.batch_size != 7 and second.trainer.max_epochs != 99 and second.model.dim != 3


@pytest.mark.parametrize("written", ["off", "false", "16", "64", "128", "'64'"])
def test_padding_can_be_typed(written: str) -> None:
    """YAML and the command line read 64 as a number, and YAML reads off as false."""
    padding = typed(compose("train", [f"sharding.padding={written}"])).sharding.padding
    assert padding == {"false": "off", "'64'": "64"}.get(written, written)
