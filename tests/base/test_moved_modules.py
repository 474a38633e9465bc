"""Old names of modules, which models and losses of users import."""

from importlib import import_module

import pytest

from recsys.base.moved_modules import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_is_the_module(old: str, new: str) -> None:
    module = import_module(old)
    assert module is import_module(new)
    assert module.__spec__ is not None and module.__spec__.name == module.__name__ == new
