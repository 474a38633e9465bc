"""sharding.comms: what exists where, and that quantised vectors train about the same model."""

from pathlib import Path

import pytest
import torch
from checkpoint_states import state
from forks import ok, run_forked

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.plan import plan
from recsys.schema.run_schema import CommsConfig, ShardingConfig
from recsys.sharding.sharders import check_comms, codecs

SMALL = [*("model=dlrm", "data=criteo", "data.sample.rows=2000", "trainer.batch_size=128"), "trainer.devices=2"]


@pytest.mark.parametrize(
    ("name", "types", "device", "why"),
    [
        ("bf16", ["table_wise"], "cpu", "collectives on CPUs (gloo) have no bfloat16"),
        ("int8", ["row_wise", "table_wise"], "cpu", "collectives on CPUs (gloo) cannot add up int8"),
        ("int8", [], "cpu", "collectives on CPUs (gloo) cannot add up int8"),
    ],
)
def test_what_a_device_cannot_exchange_is_refused(name: str, types: list[str], device: str, why: str) -> None:
    with pytest.raises(UserError) as error:
        check_comms(ShardingConfig(types=types, comms=CommsConfig("fp16", name)), device)
    assert str(error.value).startswith(f"sharding.comms.backward={name}: {why}")


@pytest.mark.parametrize(("name", "types"), [("bf16", []), ("int8", ["row_wise"])])
def test_gpus_exchange_all(name: str, types: list[str]) -> None:
    check_comms(ShardingConfig(types=types, comms=CommsConfig(name, name)), "cuda")


def test_float32_needs_no_codec() -> None:
    cpu = torch.device("cpu")
    assert codecs(CommsConfig(), cpu) is None
    assert {name.lower() for name in codecs(CommsConfig("fp16", "fp32"), cpu)} == {
        *("pooled_embeddings_all_to_all", "pooled_embeddings_reduce_scatter", "sequence_embeddings_all_to_all")
    }


def test_a_plan_counts_the_bytes_of_the_numbers() -> None:
    def sent(*more: str) -> float:
        given = ["model=dlrm", "data=criteo_1tb", "cluster=dgx_h100", "sharding=tablewise", *more]
        return sum(d.sent_bytes for d in plan(compose("plan", given)).devices)

    half = sent() - sent("sharding.comms.forward=fp16", "sharding.comms.backward=bf16")
    assert sent() - sent("sharding.comms.forward=fp16") == half / 2  # ids and lengths stay
    assert sent() - sent("sharding.comms.backward=int8") == half * 11 / 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharding", "comms"), [("rowwise", "fp16"), ("tablewise", "fp16"), ("columnwise", "fp16"), ("tablewise", "int8")]
)
def test_two_processes_train_about_the_same(tmp_path: Path, sharding: str, comms: str) -> None:
    types = [f"sharding.comms.forward={comms}", f"sharding.comms.backward={comms}"]
    for name, more in (("fp32", []), (comms, types)):
        given = [*SMALL, f"sharding={sharding}", *more, f"run_dir={name}", "data.prepared=prepared"]
        ok(run_forked("recsys.train", *given, cwd=tmp_path))
    exact, about = (state(tmp_path / name, tmp_path / f"{name}.pt") for name in ("fp32", comms))
    weights = [n for n in exact if n.startswith("/model/")]
    differences = torch.cat([(exact[n] - about[n]).flatten() for n in weights]).abs()
    size = torch.cat([exact[n].flatten() for n in weights]).abs().mean()
    assert 0 < differences.mean() < (0.1 if comms == "fp16" else 0.2) * size
