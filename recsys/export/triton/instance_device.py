"""The device of an instance of Triton's Python backend."""

from __future__ import annotations

import os
from collections.abc import Mapping


def device_of(args: Mapping[str, str]) -> str:
    """Return the device for `recsys.export.artefact.load`, and show this process the instance's GPU alone.

    An instance on a GPU whose Python has no CUDA provider serves on the CPU.

    Args:
        args: what Triton passes to `initialize`.
    """
    if args.get("model_instance_kind") != "GPU":
        return "cpu"
    number = args["model_instance_device_id"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(number)] if visible[0] else number
    return "auto"
