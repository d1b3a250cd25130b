"""The Triton kernels are the definition, in Triton's interpreter; they compile for a GPU; and one that is wrong is not used.

The interpreter is for a whole process and has to be asked for before Triton is imported, so its tests run in a pytest of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from capslib.layers import DenseCapsules
from capslib.routing import LazyVotes, em_routing, fast, make_routing, module, use_path

pytest.importorskip("triton", reason="Triton is not installed: it comes with PyTorch for CUDA, or by pip install triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
N, CHILDREN, PARENTS, DIM, CHILD_DIM = 2, 5, 3, 3, 5


@pytest.mark.skipif(INTERPRETED, reason="the interpreter is running")
def test_the_interpreter_has_its_tests():
    """Those of the class below, each of them shown here if it fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::TestInterpreted"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


class NoGPU:
    """As much of a driver as compiling asks for."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter is running")
def test_every_kernel_compiles_for_a_gpu(monkeypatch, tmp_path):
    """Down to machine code, on the way that a launch takes up to the driver: the interpreter takes what the compiler does not."""
    import triton

    from capslib.routing import kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = set()

    class Compile:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def launch(*tensors, **options):
                binary = self.kernel.warmup(*tensors, grid=grid, **options)
                assert binary.asm["cubin"]
                compiled.add((self.kernel.__name__, options["last"]))

            return launch

    names = ("_forward_kernel", "_backward_kernel")
    for name in names:
        monkeypatch.setattr(kernels, name, Compile(getattr(kernels, name)))
    monkeypatch.setattr(kernels, "covers", lambda *_, **__: True)
    monkeypatch.setattr(triton.runtime.driver, "_active", NoGPU())
    outcome("em", "triton", *draw(False), torch.float32, iterations=2, bias=0.1)
    assert compiled == {(name, last) for name in names for last in (False, True)}


def outcome(name: str, path: str, votes, activation, dtype, **options) -> list[torch.Tensor]:
    """The result, and the gradients of everything that has one; every element of the result has a weight of its own."""
    torch.manual_seed(1)
    options["beta_std"] = 10.0  # costs that an activation shows within four digits
    routing = make_routing(name, PARENTS, DIM, **options).to(dtype)
    routing.path = path
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in (*votes, activation)]
    *votes, activation = leaves
    result = routing(LazyVotes(*votes) if len(votes) == 2 else votes[0], activation)
    sum((t * torch.linspace(-1, 2, t.numel(), dtype=dtype).view_as(t)).sum() for t in result).backward()
    return [*result, *(t.grad for t in (*leaves, *routing.parameters()) if t.grad is not None)]


def assert_kernels_are_exact(name: str, votes, activation, **options) -> None:
    """Float32 through the kernels against float64 through the definition, as the fast path is compared."""
    ours = outcome(name, "triton", votes, activation, torch.float32, **options)
    exact = outcome(name, "eager", votes, activation, torch.float64, **options)
    assert len(ours) == len(exact)
    largest = max(b.abs().max().item() for b in exact)
    for number, (a, b) in enumerate(zip(ours, exact, strict=True)):
        scale = max(1e-6 * largest, b.abs().max().item())
        assert (a - b).abs().max().item() <= 1e-4 * scale, f"tensor {number}"


def draw(lazy: bool, scale: float = 1.0, seed: int = 0):
    """Votes [2, 5, 3, 3], or weight and poses of theirs, and activations, in numbers that float32 has."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((CHILDREN, PARENTS, DIM, CHILD_DIM), (N, CHILDREN, CHILD_DIM)) if lazy else ((N, CHILDREN, PARENTS, DIM),)
    votes = [torch.randn(s, generator=generator) for s in shapes]
    votes[-1] *= scale
    return votes, torch.rand(N, CHILDREN, generator=generator)


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of two children: five children are two tiles and a half."""
    from capslib.routing import kernels

    monkeypatch.setattr(kernels, "TILE", 2 * 4)


each_routing = pytest.mark.parametrize("name", ["em", "em_vector"])


class TestInterpreted:
    __test__ = INTERPRETED

    @each_routing
    @pytest.mark.parametrize("kind", ["random", "tiny", "huge", "zero", "inactive", "hardly active"])
    def test_values_and_gradients(self, name, kind):
        votes, activation = draw(False, {"tiny": 1e-6, "huge": 1e4, "zero": 0.0}.get(kind, 1.0))
        activation *= {"inactive": 0.0, "hardly active": 1e-9}.get(kind, 1.0)  # 1e-9: less than the least mass to divide by
        assert_kernels_are_exact(name, votes, activation, iterations=2)

    @each_routing
    @pytest.mark.parametrize("iterations", [1, 3])
    def test_iterations_and_tiles(self, name, iterations, tiles):
        assert_kernels_are_exact(name, *draw(True, seed=iterations), iterations=iterations, bias=0.1)

    @each_routing
    def test_matrix_capsules(self, name, monkeypatch):
        """Their votes are formed for the kernels."""
        monkeypatch.setitem(globals(), "DIM", 4)
        generator = torch.Generator().manual_seed(0)
        votes = [torch.randn(*s, 2, 2, generator=generator) for s in ((CHILDREN, PARENTS), (N, CHILDREN))]
        assert_kernels_are_exact(name, votes, torch.rand(N, CHILDREN, generator=generator), bias=0.1)

    @pytest.mark.parametrize("options", [{"mixing": True}, {"smoothing": 0.1}], ids=str)
    def test_variants(self, options):
        """There are no kernels for them; the core does their work. The gradients of β stay out: mixing has none."""
        votes, activation = draw(False)
        found = {}
        for path, dtype in (("triton", torch.float32), ("eager", torch.float64)):
            leaves = [t.to(dtype, copy=True).requires_grad_() for t in (*votes, activation)]
            result = em_routing(*leaves, *torch.zeros(2, PARENTS, dtype=dtype), path=path, **options)
            sum((t * torch.linspace(-1, 2, t.numel(), dtype=dtype).view_as(t)).sum() for t in result).backward()
            found[path] = [*result, *(t.grad for t in leaves)]
        for ours, exact in zip(found["triton"], found["eager"], strict=True):
            assert (ours - exact).abs().max().item() <= 1e-4 * exact.abs().max().item()

    def test_the_examples_may_come_in_blocks(self, monkeypatch):
        monkeypatch.setitem(fast.BLOCK_BYTES, "cpu", 1)
        assert_kernels_are_exact("em", *draw(True), bias=0.1)

    def test_double_precision_stays_out_of_the_kernels(self, monkeypatch):
        given = draw(True)
        for ours, exact in zip(
            outcome("em", "triton", *given, torch.float64), outcome("em", "fast", *given, torch.float64), strict=True
        ):
            assert torch.equal(ours, exact)
        monkeypatch.setattr(module, "_compiler_works", lambda device: True)
        assert use_path(DenseCapsules(4, 3, 2, 2, routing="em").double(), "triton") == "compiled"

    def test_kernels_are_used_where_they_agree(self):
        module._kernels_agree.cache_clear()
        layer = DenseCapsules(4, 3, 2, 2, routing="em")
        assert use_path(layer, "triton") == layer.routing.path == "triton"

    @pytest.mark.parametrize(
        ("part", "how"), [("forward", "wrong"), ("forward", "broken"), ("backward", "wrong"), ("backward", "not a number")]
    )
    def test_kernels_that_are_wrong_are_not_used(self, part, how, monkeypatch):
        from capslib.routing import kernels

        ours = getattr(kernels, part)

        def worse(*tensors, **arguments):
            if how == "broken":
                raise RuntimeError("out of resource: shared memory")
            result = ours(*tensors, **arguments)
            spoilt = result[0][0] if part == "forward" else tensors[1]
            spoilt *= 1.01 if how == "wrong" else float("nan")
            return result

        monkeypatch.setattr(kernels, part, worse)
        monkeypatch.setattr(module, "_compiler_works", lambda device: False)
        module._kernels_agree.cache_clear()
        layer = DenseCapsules(4, 3, 2, 2, routing="em")
        try:
            assert use_path(layer, "triton") == layer.routing.path == "fast"
        finally:
            module._kernels_agree.cache_clear()
