"""Rounds in which several contestants run one after another, and their rates as ratios with a spread.

Neighbours on a shared machine slow down whole rounds, so that only ratios within a round are compared; CPU seconds are
measured beside wall seconds, since they suffer less.
"""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """What a contestant did in one round."""

    units: float
    wall: float
    cpu: float


def measure(
    topic: str, contestants: Mapping[str, Callable[[], Sample]], against: str, rounds: int, unit: str
) -> dict[str, Any]:
    """Run the rounds, print them, and write rates and ratios to benchmarks/results/TOPIC.json.

    Args:
        topic: name of the file.
        contestants: run a round each.
        against: the contestant that the others are divided by.
        rounds: number of rounds; the order changes from round to round.
        unit: what is counted, for the terminal.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for r in range(rounds):
        names = list(contestants)
        for name in names[r % len(names) :] + names[: r % len(names)]:
            samples[name].append(contestants[name]())
    results: dict[str, Any] = {}
    for name, of in samples.items():
        wall = [(a.units / a.wall) / (b.units / b.wall) for a, b in zip(of, samples[against], strict=True)]
        cpu = [(a.units / a.cpu) / (b.units / b.cpu) for a, b in zip(of, samples[against], strict=True)]
        results[name] = {
            "per_second": statistics.median(s.units / s.wall for s in of),
            "per_cpu_second": statistics.median(s.units / s.cpu for s in of),
            "ratio": statistics.median(wall),
            "ratios": wall,
            "cpu_ratio": statistics.median(cpu),
            "cpu_ratios": cpu,
        }
        spread = f"{statistics.median(wall):.2f} ({min(wall):.2f} - {max(wall):.2f})"
        by_cpu = f"{statistics.median(cpu):.2f} ({min(cpu):.2f} - {max(cpu):.2f})"
        rate = f"{results[name]['per_second']:>12,.1f} {unit}/s"
        print(f"{topic:12} {name:32} {rate}  x {spread} by the clock, x {by_cpu} by CPU seconds", flush=True)
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "machine": platform.machine()}
    machine["bfloat16"] = [k for k in ("amx_bf16", "avx512_bf16") if torch.cpu.get_capabilities().get(k)]
    target = Path(__file__).parent / "results" / f"{topic}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(
        json.dumps({"rounds": rounds, "against": against, "machine": machine, "results": results}, indent=1) + "\n"
    )
    return results
