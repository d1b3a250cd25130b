"""What scores say of every test example, from one look at the trained network (§3.3).

See also the released code. The larger a score, the more anomalous the example.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from capslib.errors import NotFinite
from capslib.inequality import MEASURES
from capslib.networks.inequality_anomaly import ANOMALY, NORMAL, AnomalyOutput

if TYPE_CHECKING:
    from capslib.training import Examples

LITTLE = 1e-5
"""What the released code adds to a normality before it takes the reciprocal."""
QUANTILES = np.linspace(0, 1, 21)
"""The quantiles of a score, and the points of a Lorenz curve, that a record keeps."""
EDGES = np.linspace(-6, 6, 49)
"""The edges of the histogram of ln(I·c): how much more than an equal share a child has."""
CAPSULES = {"normal": NORMAL, "anomaly": ANOMALY}
INPUTS = {"normal": NORMAL, "anomalies": ANOMALY}


def scores(output: AnomalyOutput, inputs: Tensor) -> dict[str, Tensor]:
    """Return all scores [N] of a batch.

    They are of the couplings of the anomaly capsule, of both lengths, and of the
    reconstruction. ``a`` is Piciarelli's with the sum over pixels as released, ``npp`` and
    ``nre`` are Li's; ``…_flipped`` has the difference of lengths the other way round;
    ``length`` and ``error`` are its two terms alone. ``…_normal`` measures the normal capsule.
    """
    normal, anomaly = output.activation.unbind(dim=1)
    difference = (inputs.flatten(1) - output.reconstruction).square()
    error, mean = difference.sum(dim=1), difference.mean(dim=1)
    nre = -error / inputs.flatten(1).square().sum(dim=1).sqrt()
    coupling = output.coupling  # [N, I, 2]
    by_name = {name: measure(coupling[..., ANOMALY]) for name, measure in MEASURES.items()}
    for name in ("gini", "palma"):
        by_name[f"{name}_normal"] = MEASURES[name](coupling[..., NORMAL])
    return {
        **by_name,
        "plain": output.activation.argmax(dim=1),
        "length": anomaly - normal,
        "error": error,
        "a": normal - anomaly + error,
        "a_mean": normal - anomaly + mean,
        "a_flipped": anomaly - normal + error,
        "a_mean_flipped": anomaly - normal + mean,
        "npp": 1 / (output.activation.softmax(dim=1).amax(dim=1) + LITTLE),
        "npp_plain": 1 / (output.activation.amax(dim=1) + LITTLE),
        "nre": 1 / (nre + LITTLE),
    }


def look(
    network: nn.Module, examples: Examples, size: int
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """Return the scores [N] of all examples, and how the couplings of both capsules are spread.

    Of each capsule there are the mean Lorenz curve, and the share of the children by ln(I·c),
    for normal examples and for anomalies. ``size`` examples are looked at together.
    """
    parts: dict[str, list[Tensor]] = {}
    curves = torch.zeros(2, 2, len(QUANTILES))  # [label, capsule, quantile]
    bins = torch.zeros(2, 2, len(EDGES) - 1)  # [label, capsule, bin]
    count = torch.zeros(2)
    with torch.no_grad():
        for inputs, labels in examples.batches(size):
            output = network(inputs)
            for name, score in scores(output, inputs).items():
                parts.setdefault(name, []).append(score.double().cpu())
            for label in (NORMAL, ANOMALY):
                coupling = output.coupling[labels == label].cpu()  # [n, I, 2]
                count[label] += len(coupling)
                for capsule in (NORMAL, ANOMALY):
                    curves[label, capsule] += lorenz(coupling[..., capsule]).sum(dim=0)
                    bins[label, capsule] += children_by_share(coupling[..., capsule])
    scores_by_name = {name: torch.cat(batches).numpy() for name, batches in parts.items()}
    scores_by_name["palma_as_read"] = as_read(
        scores_by_name["palma_normal"], scores_by_name["palma"]
    )
    spread = {
        "quantiles": to_five_digits(QUANTILES),
        "log_shares": to_five_digits((EDGES[1:] + EDGES[:-1]) / 2),
    }
    for inputs_name, label in INPUTS.items():
        for capsule_name, capsule in CAPSULES.items():
            name = f"{capsule_name}_capsule_{inputs_name}"
            spread[f"lorenz_{name}"] = to_five_digits(curves[label, capsule] / count[label])
            spread[f"couplings_{name}"] = to_five_digits(bins[label, capsule] / count[label])
    return scores_by_name, spread


def children_by_share(coupling: Tensor) -> Tensor:
    """Return the share of the children in each bin of ``EDGES``, summed over examples.

    ``coupling`` [n, I] is that of one capsule.
    """
    children = coupling.shape[1]
    log_share = (children * coupling).clamp_min(1e-30).log().clamp(EDGES[0], EDGES[-1])
    return torch.histogram(log_share, torch.from_numpy(EDGES).float()).hist / children


def as_read(normal: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    """Return what the released evaluation reads of Palma ratios [N] of both capsules.

    It reads the second word of each pair as NumPy prints it. Where the anomaly capsule's ratio
    has more digits before its point, NumPy pads the other with a blank, before which an empty
    word stands; then the second word is the *normal* capsule's ratio. (Ratios a thousandfold
    apart get exponents, and no blank.)

    >>> as_read(np.array([1.5, 9.5]), np.array([9.25, 12.25]))
    array([9.25, 9.5 ])
    """
    pairs = np.stack([normal, anomaly], axis=1).astype(np.float32)
    return np.array([float(re.split(r"\s+", str(pair)[1:-1])[1]) for pair in pairs])


def lorenz(x: Tensor) -> Tensor:
    """Return the shares [N, 21] of the total that the least of the values [N, I] have together.

    They are at ``QUANTILES`` of the values.
    """
    total = x.sort(dim=1).values.cumsum(dim=1)
    shares = torch.cat([torch.zeros_like(total[:, :1]), total / total[:, -1:]], dim=1)
    return shares[:, torch.from_numpy(x.shape[1] * QUANTILES).round().long()]


def areas(scores: Mapping[str, np.ndarray], labels: np.ndarray) -> dict[str, float]:
    """Return AUROC and average precision of every score, anomalies being positive.

    Raise NotFinite for a score that is not a number.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    largest = np.finfo(np.float64).max
    by_metric = {}
    for name, score in scores.items():
        number = np.isnan(score).sum()
        if number:
            raise NotFinite(
                f"the score {name} is not a number for {number} of {len(score)} test examples"
            )
        score = score.clip(-largest, largest)  # infinite ones are ranked, too
        by_metric[f"auroc_{name}"] = float(roc_auc_score(labels, score))
        by_metric[f"ap_{name}"] = float(average_precision_score(labels, score))
    return by_metric


def quantiles_by_input(
    scores: Mapping[str, np.ndarray], labels: np.ndarray
) -> dict[str, list[float]]:
    """Return ``QUANTILES`` of every score, for normal examples and for anomalies."""
    quantiles = {}
    for name, score in scores.items():
        for inputs_name, label in INPUTS.items():
            quantiles[f"{name}_of_{inputs_name}"] = to_five_digits(
                np.quantile(score[labels == label], QUANTILES, method="closest_observation")
            )
    return quantiles


def to_five_digits(values: Tensor | np.ndarray) -> list[float]:
    """Return values as a record keeps them: to five digits, and finite."""
    largest = float(np.finfo(np.float32).max)
    return [max(-largest, min(largest, float(f"{v:.5g}"))) for v in values.tolist()]
