"""Build modules on the meta device without drawing values that do not exist."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

DRAWS = {Tensor.normal_, Tensor.uniform_}


class without_meta_values(TorchFunctionMode):
    """A context in which tensors on the meta device get no initial values: PyTorch would load sympy to do nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)
