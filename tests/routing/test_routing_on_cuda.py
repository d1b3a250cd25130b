"""A GPU gives what a CPU gives: every routing, on every path, if there is a CUDA device."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from conformance import BIASES, assert_close, build, draw_kind, outcome_on
from torch import Tensor

from capslib.routing import ROUTINGS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_on_a_gpu_agrees_with_the_cpu(name, bias):
    """In float32, to within a thousandth of what the CPU finds in float64."""

    def routed(device: str, dtype: torch.dtype, path: str, form: str) -> list[Tensor]:
        routing = build(name, bias).to(device, dtype)
        tensors = [tensor.to(device, dtype) for tensor in draw_kind("random", form)]
        outcome = outcome_on(path, routing, *tensors)
        return [tensor.detach().cpu().double() for tensor in outcome]

    for form, path in product(("vectors", "matrices"), ("eager", "fast", "compiled")):
        expected = routed("cpu", torch.float64, "eager", form)
        rounding = 1e-7 * max(tensor.abs().max().item() for tensor in expected)
        result = routed("cuda", torch.float32, path, form)
        assert_close(result, expected, 1e-3, rounding, case=(form, path))
