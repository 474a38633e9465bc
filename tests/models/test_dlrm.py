"""DLRM's dot interaction; the whole model is compared with NumPy in test_parity.py."""

import torch

from recsys.models.dlrm import DotInteraction


def test_the_gradient_of_dot_products() -> None:
    """The dot products have a backward of their own: as numerical differences say, also twice, and in bfloat16."""
    dot = DotInteraction(4)
    vectors = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(dot, vectors) and torch.autograd.gradgradcheck(dot, vectors)
    single = vectors.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dots = dot(single)
        plain = torch.bmm(single, single.transpose(1, 2))
    assert dots.dtype == torch.bfloat16 and torch.equal(dots, plain[:, *torch.tril_indices(4, 4, -1)])
    dots.float().sum().backward()
    expected = vectors.detach().sum(1, keepdim=True) - vectors.detach()
    torch.testing.assert_close(single.grad.double(), expected, rtol=0.02, atol=0.02)  # type: ignore[union-attr]
