"""trainer.recompute: the same training in less memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys.config.compose import compose
from recsys.models.masknet import MaskBlock
from recsys.models.sasrec import SASRecBlock
from recsys.training.compiled import recompute_blocks
from recsys.training.run import train

SEQUENCES = ["data=sample_sequences", "data.sample.rows=2000", "trainer.max_epochs=1", "model.dropout=0.2"]


def run(folder: Path, name: str, *given: str) -> dict[str, Any]:
    overrides = [*given, "trainer.threads=1", f"data.prepared={folder}/prepared", f"run_dir={folder / name}"]
    return train(compose("train", overrides)).metrics


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["sasrec", "hstu", pytest.param("transformer", marks=pytest.mark.slow)])
def test_a_run_learns_the_same(tmp_path: Path, model: str) -> None:
    """To the last digit, with dropout, whose random numbers are drawn again."""
    kept, again = (
        run(tmp_path, str(r), f"model={model}", *SEQUENCES, f"trainer.recompute={r}")["test"] for r in (False, True)
    )
    assert kept == again


@pytest.mark.slow
def test_models_without_blocks_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "run", "data.sample.rows=2000", "trainer.recompute=true")
    assert "trainer.recompute=true: has no effect on DLRM, which has no blocks" in capsys.readouterr().err


def test_a_block_keeps_its_input_alone() -> None:
    kept = {}
    for again in (False, True):
        torch.manual_seed(0)
        model = nn.Module()
        options = {"dropout": 0.1, "attention_dropout": 0.0, "projection": True, "norm": "queries"}
        model.blocks = nn.ModuleList(SASRecBlock(16, 2, **options) for _ in range(3))  # type: ignore[arg-type]
        assert not again or recompute_blocks(model) == 3
        saved: list[Tensor] = []
        x, lengths = torch.randn(60, 16, requires_grad=True), torch.full((6,), 10)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=saved: s.append(t) or t, lambda t: t):
            for block in model.blocks:
                x = block(x, lengths)
        x.sum().backward()
        kept[again] = sum(t.numel() for t in saved if t.is_floating_point()), model.blocks[0].before.weight.grad
    assert kept[True][0] < kept[False][0] / 4
    assert torch.equal(kept[True][1], kept[False][1])


def test_blocks_with_batch_norm_keep_their_activations() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), MaskBlock(4, 4, 4, 2)])
    assert recompute_blocks(model) == 1
