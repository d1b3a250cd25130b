"""What training costs: FLOPs, bytes and memory of a step from the shapes of its layers, and the time on a device that follows.

A step takes what its layers take one after another, and a layer the longer of two times: its FLOPs over the rate of matrix
products, its bytes over the bandwidth. The model knows no measurement but the rates in ``DEVICES``; where there are records, they
are the better estimate. ``tests/test_costs.py`` holds the FLOPs against torch's own counter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

FLOAT = 4
"""Bytes of a number: everything is float32. TF32 changes how fast a matrix product is, not what it reads."""
ADAM_PASSES = 18
"""Reads and writes of every parameter in one update, as torch.optim.Adam does it: one operation after another over all of them."""


@dataclass(frozen=True)
class Layer:
    """What one layer takes in one training step, forward and backward, for the whole batch.

    ``flops`` are those of matrix products and convolutions, ``bytes`` what is read and written; what is done element by element
    costs its bytes. ``kept`` are the bytes that wait for the backward pass, ``votes`` those of the votes if all were formed at once.
    ``calls`` is about how many operations the device is called for.
    """

    name: str
    flops: int
    bytes: int
    parameters: int = 0
    kept: int = 0
    votes: int = 0
    calls: int = 8


def _product(name: str, flops: int, read: int, weights: int, written: int, first: bool = False) -> Layer:
    """A product with weights, and the nonlinearity behind it. ``flops`` and the other counts, of numbers, are of the forward pass.

    Forward it reads input and weights and writes the output. Backward there are two products of the same size, for the gradients of
    the input and of the weights; the ``first`` layer of a network needs only the latter. The nonlinearity reads and writes
    the output forward, and backward reads it, reads its gradient and writes one.
    """
    products = 2 if first else 3
    moved = products * (read + weights + written) + 5 * written
    return Layer(name, products * flops, FLOAT * moved, weights, FLOAT * 2 * written)


def convolution(
    batch: int, channels: int, filters: int, kernel: int, output: tuple[int, int], stride: int = 1, *, first: bool = False
) -> Layer:
    """A convolution without padding, of square kernels, to feature maps of ``output`` = (H', W')."""
    inputs = math.prod((side - 1) * stride + kernel for side in output)
    weights, pixels = channels * filters * kernel**2, math.prod(output)
    flops, read, written = 2 * batch * pixels * weights, batch * channels * inputs, batch * filters * pixels
    return _product("convolution", flops, read, weights, written, first)


def dense(batch: int, inputs: int, outputs: int) -> Layer:
    """A dense layer on ``batch`` rows."""
    return _product("dense", 2 * batch * inputs * outputs, batch * inputs, inputs * outputs, batch * outputs)


def after(size: tuple[int, int], kernel: int, stride: int = 1) -> tuple[int, int]:
    """Height and width of the feature maps behind a convolution without padding."""
    return tuple((side - kernel) // stride + 1 for side in size)


def capsules(
    routing: str,
    batch: int,
    children: int,
    parents: int,
    dim: int,
    inner: int,
    *,
    iterations: int = 3,
    weights: int | None = None,
) -> tuple[Layer, Layer]:
    """Votes of ``children`` I for ``parents`` J of ``dim`` D, and their routing in T ``iterations``. ``routing`` is a key of ``ROUTED``.

    A vote is D products of ``inner`` terms each: the d dimensions of a child, or the side of a pose matrix. There are I·J·D·inner
    weights, or as many as ``weights`` says where positions share them; a convolution of capsules is a batch of images times positions.

    On the fast path (``capslib.routing.fast``) votes are written and, for the gradient, formed and written again; the gradients of
    weights and children read that of the votes once each. The routing itself is counted in passes over the votes, see ``ROUTED``.
    """
    votes = batch * children * parents * dim
    weights = children * parents * dim * inner if weights is None else weights
    products, passes = ROUTED[routing](iterations)
    poses, couplings = batch * children * inner, iterations * batch * parents * (children + 2 * dim)
    return (
        Layer("votes", 8 * votes * inner, FLOAT * 4 * (votes + weights), weights, FLOAT * poses, FLOAT * votes),
        Layer(routing, 2 * votes * products, FLOAT * votes * passes, kept=FLOAT * couplings, calls=2 * passes),
    )


def _dynamic(iterations: int) -> tuple[int, int]:
    """Forward s_j reads the votes in each of T iterations and the agreement in all but the last; backward so do their gradients.

    The gradient of the votes is summed up in one go. Forward the votes are read and written once more, laid out anew; so are they
    backward, and their gradient on its way out.
    """
    forward, backward = 2 * iterations - 1, 2 * (iterations - 1)
    return forward + backward, (forward + 2) + (backward + 1 + 2 + 2)


def _em(iterations: int) -> tuple[int, int]:
    """Forward the mean, the variance and, but in the last iteration, the distances read the votes, each when the one before is there.

    Backward an iteration reads them for its shares, and, but the last, for its means; then it reads the votes and their gradient and
    writes the latter. Of products there are two where the variance comes with the mean. The layout as in dynamic routing.
    """
    e_steps = iterations - 1
    products = (2 * iterations + e_steps) + (2 * iterations + 2 * e_steps)
    return products, (2 * iterations + e_steps + 2) + (4 * iterations + e_steps + 2 + 2)


ROUTED = {"dynamic": _dynamic, "em": _em, "em_vector": _em}
"""By routing, for T iterations: products of all votes with a vector (2 FLOPs a vote), and passes over all votes, read or written.

A pass is counted as if it went to memory. Chunks that stay in a cache, and kernels that do several passes in one, make it cheaper.
"""


@dataclass(frozen=True)
class Device:
    """Rates that training sustains: FLOP/s of matrix products, bytes/s of memory, seconds for a call and to start a trial.

    ``block`` is how many bytes of votes are formed at once (``BLOCK_BYTES`` of ``capslib.routing.fast``), ``process`` the memory of
    a process beside its tensors where that counts as the trial's.
    """

    name: str
    flops: float
    bandwidth: float
    call: float
    start: float
    block: int
    process: int


DEVICES: Mapping[str, Device] = {
    # Three quarters of the 495 TFLOP/s that the data sheet gives for TF32; a copy reaches 4.3 of its 4.8 TB/s. A kernel takes Python
    # about 10 µs to launch, and a process about half a minute to start, load its data and compile its routings.
    "cuda": Device("one NVIDIA H200", 370e12, 4.3e12, 10e-6, 30.0, 1 << 30, 0),
    # A core of a server reaches 90 GFLOP/s in one large product and 25 GB/s in one large copy; layers of a training step, half of that.
    "cpu": Device("one CPU core", 40e9, 10e9, 10e-6, 5.0, 32 << 20, 512 << 20),
}
"""By kind of device, as torch names it."""


REST = 40
"""Calls of a step for what has no layer: the batch, the loss, the accuracy, the look at whether all is finite."""


@dataclass(frozen=True)
class Work:
    """A trial: so many training steps through these layers and Adam. ``beside`` are the bytes of its data and its evaluation."""

    steps: float
    layers: tuple[Layer, ...]
    beside: int = 0

    @property
    def parameters(self) -> int:
        """Weights only: biases are too few to count."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def step(self) -> tuple[Layer, ...]:
        """The layers of a step, the optimiser's update among them."""
        return (*self.layers, Layer("Adam", 0, FLOAT * ADAM_PASSES * self.parameters, calls=ADAM_PASSES))

    @property
    def flops(self) -> int:
        """Of a step."""
        return sum(layer.flops for layer in self.step)

    @property
    def bytes(self) -> int:
        """Read and written in a step."""
        return sum(layer.bytes for layer in self.step)

    def memory(self, device: Device) -> int:
        """Peak, in bytes: weights with gradient and two moments, what waits for the backward pass, and a block of votes three times
        (the votes, their gradient, and a copy that has another layout)."""
        block = max((min(layer.votes, device.block) for layer in self.layers), default=0)
        return device.process + self.beside + 4 * FLOAT * self.parameters + sum(layer.kept for layer in self.layers) + 3 * block

    def step_seconds(self, device: Device) -> float:
        """Of a step: its layers one after another, and the calls, as if nothing of them overlapped."""
        busy = sum(max(layer.flops / device.flops, layer.bytes / device.bandwidth) for layer in self.step)
        calls = device.call * (REST + sum(layer.calls for layer in self.step))
        return busy + calls

    def seconds(self, device: Device) -> float:
        """Of the whole trial."""
        return device.start + self.steps * self.step_seconds(device)

    def __str__(self) -> str:
        """``11750 steps of 303 GFLOP and 6.1 GB, 3.56 PFLOP and 71.7 TB in all``."""
        one, whole = ((si(n * self.flops, "FLOP"), si(n * self.bytes, "B")) for n in (1, self.steps))
        return f"{self.steps:.0f} steps of {' and '.join(one)}, {' and '.join(whole)} in all"


def steps(epochs: int, batch: int, train: int, test: int = 0) -> float:
    """Training steps of so many epochs over ``train`` examples, and the forward passes over ``test`` after each: a third of a step."""
    return epochs * (math.ceil(train / batch) + test / batch / 3)


def on(device: Device, works: Collection[Work]) -> str:
    """``12.3 min and at most 2.3 GB on one NVIDIA H200``: trials one after another."""
    minutes, most = sum(w.seconds(device) for w in works) / 60, max(w.memory(device) for w in works)
    return f"{minutes:.1f} min and at most {si(most, 'B')} on {device.name}"


def si(number: float, unit: str) -> str:
    """``3.21 GB``: three digits and a prefix."""
    number = float(f"{number:.2e}")
    power = min(6, int(math.log10(max(1.0, number))) // 3)
    return f"{number / 1000**power:.3g} {' kMGTPE'[power].strip()}{unit}"
