"""A GPU gives what a CPU gives: every routing, on every path, if there is a CUDA device."""

from __future__ import annotations

import pytest
import torch
from conformance import BIASES, assert_close, build, draw_kind, outcome
from torch import Tensor

from capslib.routing import ROUTINGS, use_path


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("path", ["eager", "fast", "compiled"])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_on_a_gpu_agrees_with_the_cpu(name, bias, path):
    """In float32, to within a thousandth of what the CPU finds in float64."""

    def outcome_on(device: str, dtype: torch.dtype, path: str, form: str) -> list[Tensor]:
        routing = build(name, BIASES[bias]).to(device, dtype)
        use_path(routing, path)
        tensors = (tensor.to(device, dtype) for tensor in draw_kind("random", form))
        return [tensor.detach().cpu().double() for tensor in outcome(routing, *tensors)]

    for form in ("vectors", "matrices"):
        expected = outcome_on("cpu", torch.float64, "eager", form)
        rounding = 1e-7 * max(tensor.abs().max().item() for tensor in expected)
        result = outcome_on("cuda", torch.float32, path, form)
        assert_close(result, expected, 1e-3, rounding, case=form)
