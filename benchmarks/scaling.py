"""python benchmarks/scaling.py [ROUNDS]: one process and two, by sharding type; bytes on a link and in the plan.

DLRM with 26 tables of 32 columns on samples of Criteo's shape, a batch of 8192 for all processes together, one thread a
process: the rates by the clock, with the share of time in collectives. Then two hosts (network namespaces, as root)
with a link of 1 Gbit/s train with each sharding type, once for a few steps and once for more: the difference of the
bytes that a host sent, by step, is compared with what recsys.plan estimates for tables and with the gradients of the
dense part. Then they train SASRec on lists of 50 items, with and without sharding.dedup.
"""

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from steady import RESULTS, Claim, Sample, measure

from recsys.checkpoint import inspect
from recsys.files.run_files import newest_checkpoint
from recsys.sharding.stored_checkpoint import StoredCheckpoint

SHARDINGS = ("rowwise", "tablewise", "columnwise")
COMMS = {t: [f"sharding.comms.forward={t}", f"sharding.comms.backward={t}"] for t in ("fp32", "fp16", "int8")}
BATCH, RATE = 8192, "1gbit"
STEPS = (5, 35)
MODEL = ["model=dlrm", "data=criteo", "data.sample.rows=300000", "model.dim=32", "model.bottom_mlp=[64,32]"]
MODEL += [f"trainer.batch_size={BATCH}"]
LISTS = ["model=sasrec", "data=sample_sequences", "data.sample.rows=300000", "trainer.batch_size=512"]


def train(arguments: Sequence[str], run: Path, shares: list[float]) -> Sample:
    """Train in the processes that the arguments name."""
    command = [sys.executable, "-m", "recsys.train", *MODEL, f"run_dir={run}"]
    subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
    of = json.loads((run / "metrics.json").read_text())["train"]
    shares.append(of["time"].get("collectives", 0.0))
    return Sample(of["samples"], of["seconds"], of["cpu_seconds"])


@contextlib.contextmanager
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a link of RATE."""
    names = [f"bench{os.getpid()}{end}" for end in "ab"]
    run: Callable[..., Any] = lambda *words: subprocess.run(words, check=True, capture_output=True)  # noqa: E731
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "veth", "netns", names[0], "type", "veth", "peer", "name", "veth", "netns", names[1])
        for i, name in enumerate(names):
            run("ip", "-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "veth")
            for device in ("veth", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")
            limit = ["rate", RATE, "burst", "1mb", "latency", "50ms"]
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "veth", "root", "tbf", *limit)
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            (etc / "hosts").write_text("127.0.0.1 localhost\n10.78.0.1 host-0\n10.78.0.2 host-1\n")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def sent(names: list[str], arguments: Sequence[str], run: Path, port: int) -> int:
    """Return the bytes that the first host sent in a training of both."""
    processes = []
    for i, name in enumerate(names):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        command += [f"--node_rank={i}", "--nproc_per_node=1", "--master_addr=10.78.0.1", f"--master_port={port}"]
        command += ["-m", "recsys.train", f"run_dir={run}", *arguments]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "veth"}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for process in processes:
        _, errors = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args, stderr=errors)
    counter = ["ip", "netns", "exec", names[0], "cat", "/sys/class/net/veth/statistics/tx_bytes"]
    return int(subprocess.run(counter, check=True, capture_output=True).stdout)


def predicted(run: Path, arguments: Sequence[str], target: Path) -> float:
    """Return the bytes that a device sends in a step: of tables, as recsys.plan says, and of the dense gradients."""
    command = [sys.executable, "-m", "recsys.plan", *MODEL, f"features={run}", *arguments, "cluster=here"]
    command += ["cluster.nodes=2", "cluster.devices=1", f"output={target}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    devices = json.loads(target.read_text())["devices"]
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    return float(devices[0]["sent_bytes"]) + float(inspect(StoredCheckpoint(checkpoint))["dense"]["bytes"])


def bytes_a_step(arguments: Sequence[str], run: Path) -> float:
    """Return the bytes that the first of two hosts sends in a step."""
    totals = []
    with hosts() as names:
        for i, steps in enumerate(STEPS):
            more = ["trainer.max_epochs=1000", "debug.eval_batches=1", "trainer.early_stopping.patience=null"]
            own = Path(f"{run}-{steps}")
            totals.append(sent(names, [*arguments, f"trainer.max_steps={steps}", *more], own, 29500 + i))
    return (totals[1] - 2 * totals[0]) / (STEPS[1] - STEPS[0])  # the counter also has the first run's bytes


def compare_dedup(folder: Path) -> list[dict[str, Any]]:
    """Return the bytes that a host sends in a step of LISTS, with sharding.dedup and without."""
    rows = []
    for sharding in SHARDINGS:
        common = [*LISTS, f"data.prepared={folder / 'lists'}", f"sharding={sharding}"]
        each, once = (bytes_a_step([*common, f"sharding.dedup={d}"], folder / f"{sharding}-{d}") for d in (False, True))
        rows.append({"sharding": sharding, "each": each, "once": once})
        text = f"{each / 1e6:.2f} MB sent a step, {once / 1e6:.2f} MB with dedup: {once / each:.2f}"
        print(f"scaling      two hosts, SASRec, {sharding}: {text}", flush=True)
    return rows


def compare_bytes(folder: Path, prepared: Path) -> list[dict[str, Any]]:
    """Return the bytes that a host sends in a step, measured and predicted, by sharding and types of numbers."""
    rows = []
    for sharding, comms in itertools.product(SHARDINGS, COMMS):
        if comms == "int8" and sharding == "rowwise":  # gloo cannot add up int8
            continue
        name, choice = f"{sharding}-{comms}", [f"sharding={sharding}", *COMMS[comms]]
        measured = bytes_a_step([*MODEL, *choice, f"data.prepared={prepared}"], folder / f"hosts-{name}")
        estimate = predicted(folder / f"hosts-{name}-{STEPS[0]}", choice, folder / f"plan-{name}.json")
        rows.append({"sharding": sharding, "comms": comms, "measured": measured, "predicted": estimate})
        text = f"{measured / 1e6:.2f} MB sent a step, plan {estimate / 1e6:.2f} MB: {measured / estimate:.2f}"
        print(f"scaling      two hosts, {sharding}, {comms}: {text}", flush=True)
    return rows


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared, numbers = folder / "prepared", itertools.count()
        common = [f"data.prepared={prepared}", "trainer.max_epochs=3", "trainer.threads=1"]
        common += ["trainer.early_stopping.patience=null"]
        shares: dict[str, list[float]] = {s: [] for s in ("one process", *SHARDINGS)}

        def contestant(key: str, arguments: Sequence[str]) -> Callable[[], Sample]:
            return lambda: train([*common, *arguments], folder / f"run-{next(numbers)}", shares[key])

        contestants = {"one process": contestant("one process", [])}
        for s in SHARDINGS:
            contestants[f"two, {s}"] = contestant(s, ["trainer.devices=2", f"sharding={s}"])
        about = "DLRM in one process and in two, batch 8192 together, one thread a process"
        measure(
            "scaling", about, contestants, [Claim(f"two, {s}", "one process") for s in SHARDINGS], rounds, "samples"
        )
        (RESULTS / "scaling_bytes.json").write_text(json.dumps(compare_bytes(folder, prepared), indent=1) + "\n")
        (RESULTS / "scaling_dedup.json").write_text(json.dumps(compare_dedup(folder), indent=1) + "\n")
        for s in SHARDINGS:
            print(f"scaling      two, {s}: {statistics.median(shares[s]):.0%} of the time in collectives")


if __name__ == "__main__":
    main()
