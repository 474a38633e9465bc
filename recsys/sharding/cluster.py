"""TorchRec's Topology of the machines to plan for."""

import os
from pathlib import Path

import torch
from torchrec.distributed.planner import Topology

from recsys.base.errors import UserError
from recsys.base.memory import GIB
from recsys.schema.command_schemas import ClusterConfig


def this_machine(accelerator: str, devices: int) -> ClusterConfig:
    """Return the cluster config of this machine, shared by `devices` processes."""
    here = ClusterConfig(name="this machine", device="cpu" if accelerator == "cpu" else "cuda", devices=devices)
    here.ddr_gib = _memory() / GIB
    if here.device == "cuda":
        here.hbm_gib = torch.cuda.get_device_properties(0).total_memory / GIB
    return here


def _memory() -> int:
    """Return the bytes of RAM, or the container's limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    return min(whole, int(text)) if text != "max" else whole


def topology(cluster: ClusterConfig) -> Topology:
    """Convert GiB and GB/s into the bytes and bytes per millisecond that TorchRec plans with."""
    per_ms = 1e9 / 1e3
    return Topology(
        world_size=cluster.nodes * cluster.devices,
        local_world_size=cluster.devices,
        compute_device=cluster.device,
        hbm_cap=int((cluster.hbm_gib or 0) * GIB),
        ddr_cap=int((cluster.ddr_gib or 0) * GIB / cluster.devices),
        hbm_mem_bw=cluster.hbm_gbs * per_ms,
        ddr_mem_bw=cluster.ddr_gbs * per_ms / cluster.devices,
        hbm_to_ddr_mem_bw=cluster.pcie_gbs * per_ms,
        intra_host_bw=cluster.intra_node_gbs * per_ms,
        inter_host_bw=cluster.inter_node_gbs * per_ms,
    )


def check_cluster(cluster: ClusterConfig) -> None:
    """Fill in this machine's memory if the config leaves it unset. Raises UserError for a GPU without memory."""
    if cluster.ddr_gib is None:
        cluster.ddr_gib = _memory() / GIB
    if cluster.device == "cuda" and not (cluster.hbm_gib or 0) > 0:
        raise UserError(f"cluster.hbm_gib={cluster.hbm_gib}: must be above 0 if cluster.device=cuda")
