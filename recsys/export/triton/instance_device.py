"""The device of an instance of Triton's Python backend."""

from __future__ import annotations

from collections.abc import Mapping


def device_of(args: Mapping[str, str]) -> str:
    """Return the device for `recsys.export.artefact.load`.

    An instance on a GPU whose Python has no CUDA provider serves on the CPU. args: what Triton passes to `initialize`
    """
    if args.get("model_instance_kind") != "GPU":
        return "cpu"
    return f"auto:{args['model_instance_device_id']}"
