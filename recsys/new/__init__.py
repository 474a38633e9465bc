"""python -m recsys.new: write the YAML of a data set from its files, or the skeleton of a model or an experiment.

`recsys.new(frame)` looks at a data frame.
"""

import sys
from types import ModuleType


class _NewPackage(ModuleType):
    """Lets `recsys.new(frame)` look at a frame, although `recsys.new` is also the package of the command."""

    def __call__(self, *rows: object, **answers: object) -> object:
        from recsys.api import new

        return new(*rows, **answers)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _NewPackage
