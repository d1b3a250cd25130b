"""A GPU gives what a CPU gives: every routing, on every path. Skipped, saying so, where there is no CUDA device."""

from __future__ import annotations

import pytest
import torch
from conformance import BIASES, assert_close, build, weighted

from capslib.routing import ROUTINGS, LazyVotes, use_path

SHAPES = {"vectors": ((40, 3, 4, 5), (7, 40, 5)), "matrices": ((40, 3, 2, 2), (7, 40, 2, 2))}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("path", ["eager", "fast", "compiled"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_on_a_gpu_agrees_with_the_cpu(name, bias, shape, path):
    """In float32, values and gradients are within a thousandth of those that the CPU finds in float64."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES[shape]]
    given.append(torch.rand(7, 40, generator=generator, dtype=torch.float64) * 0.9 + 0.1)

    def outcome(device: str, dtype: torch.dtype, path: str) -> list[torch.Tensor]:
        routing = build(name, BIASES[bias]).to(device, dtype)
        use_path(routing, path)
        *votes, activation = leaves = [
            t.to(device, dtype, copy=True).requires_grad_() for t in given
        ]
        result = routing(LazyVotes(*votes), activation)
        weighted(type(result)(*(t.cpu() for t in result))).backward()
        found = [
            *result,
            *(t.grad for t in (*leaves, *routing.parameters()) if t.grad is not None),
        ]
        return [t.detach().cpu().double() for t in found]

    expected = outcome("cpu", torch.float64, "eager")
    rounding = 1e-7 * max(t.abs().max().item() for t in expected)
    assert_close(outcome("cuda", torch.float32, path), expected, 1e-3, rounding)
