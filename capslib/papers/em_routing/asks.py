"""What each claim of the paper asks of the records."""

from __future__ import annotations

from typing import Any

from capslib.papers.em_routing.recipe import EMRecipe
from capslib.papers.query import Above, Count, Order, Property, Query, Select, Value

TESTS = "tests/papers/test_em_routing.py"
_MAIN = {name: field.default for name, field in EMRecipe.model_fields.items()
         if name in ("network", "size", "routing", "iterations", "pose", "coordinates", "activation", "normalise", "preset", "loss", "margin")}  # fmt: skip
"""The fields that tell the arms apart. Sizes and budgets are those of a scale."""


def _arm(**difference: Any) -> Select:
    """The main network on smallNORB but for this."""
    return Select("test_error", {"data": "smallnorb", **_MAIN, **difference})


def _fewer(better: dict[str, Any], worse: dict[str, Any], **options: Any) -> Order:
    return Order(_arm(**better), _arm(**worse), "test_error", higher_is_better=False, **options)


def _error_of(**difference: Any) -> Value:
    return Value(_arm(**difference), "test_error")


def _viewpoint(factor: str) -> Select:
    return Select("viewpoint", {"factor": factor})


_FACTORS = {"azi": "azimuth", "ele": "elevation"}
QUERIES: dict[str, Query] = {
    **{f"EM-T1-iter{t}": _error_of(iterations=t) for t in (1, 2, 3, 5)},
    "EM-T1-vector": _error_of(pose="vector"),
    "EM-T1-nocoord": _error_of(coordinates=False),
    "EM-T1-vector-nocoord": _error_of(pose="vector", coordinates=False),
    "EM-T1-margin": _error_of(loss="margin"),
    "EM-T1-crossent": _error_of(loss="cross_entropy"),
    "EM-T1-cnn": _error_of(network="cnn"),
    "EM-T1-best": Value(_arm(), "multi_crop_error"),
    **{
        f"EM-T2-{short}-{view}-{model}": Value(_viewpoint(factor), f"{name}_{view}", final=False)
        for short, factor in _FACTORS.items()
        for view in ("novel", "familiar")
        for model, name in (("cnn", "cnn"), ("caps", "capsules"))
    },
    "EM-X-center-crop": _error_of(),
    "EM-X-multi-crop": Value(_arm(), "multi_crop_error"),
    "EM-X-small-68k": _error_of(size="small"),
    **{f"EM-X-params-{n}": Value(Select("sizes", {"network": n}), "parameters", final=False) for n in ("main", "small", "cnn")},
    "EM-X-param-ratio-cnn": Value(Select("sizes", {"network": "cnn"}), "times_main", final=False),
    "EM-X-param-ratio-ciresan": Value(Select("sizes", {"network": "main"}), "ciresan_times", final=False),
    "EM-X-mixing": _error_of(activation="mixing"),
    "EM-X-mnist": _error_of(data="mnist"),
    "EM-X-cifar10": _error_of(data="cifar10"),
    "EM-X-reduction": Value(_arm(), "fewer_errors_than_2.56"),
    **{f"EM-X-viewpoint-reduction-{short}": Value(_viewpoint(factor), "reduction", final=False)
       for short, factor in _FACTORS.items()},
    "EM-X-adv-chance": Above(Select("attacks"), "least_fgsm_accuracy", 0.2, final=False),
    "EM-X-adv-cnn-eps": Above(Select("attacks"), "cnn_fgsm_accuracy_at_0.2", 0.2, below=True, final=False),
    "EM-X-adv-gradorders": Value(Select("attacks"), "gradient_orders", final=False),
    "EM-W-1": Count({  # close is a distance in the paper's network; a reduced grid of coordinates has other distances
        "after one iteration wrong classes have close votes too":
            Above(_arm(), "close_wrong_1", 0.01, final=False, paper_scale_only=True),
        "after two almost all close votes are the right class's":
            Above(_arm(), "right_share_of_close_2", 0.9, final=False, paper_scale_only=True),
        "and after three":
            Above(_arm(), "right_share_of_close", 0.9, final=False, paper_scale_only=True),
    }),
    "EM-W-2": Count({
        "untargeted FGSM": Above(Select("attacks"), "fgsm_gap", 0, final=False),
        "targeted FGSM": Above(Select("attacks"), "targeted_gap", 0, final=False),
    }),
    "EM-W-3": Above(Select("attacks"), "bim_gap", 0, final=False),
    "EM-W-4": Above(Select("attacks"), "zero_gap", 0, final=False),
    "EM-W-5": Above(Select("attacks"), "transfer_gap", 0.05, below=True, final=False),
    "EM-W-6": Order(_arm(), _arm(margin="fixed"), "dead", higher_is_better=False, final=False),
    "EM-W-7": Property(Select("sizes", {"network": "main"}), "beside_matrices_and_two_biases", 0,
                       f"{TESTS}::test_a_capsule_layer_stores_matrices_and_two_biases"),
    "EM-W-8": Property(Select("free_energy", {"form": "printed", "e_step": "paper"}), "largest_rise", 1e-9,
                       "tests/routing/test_free_energy.py::test_each_other_update_raises_a_form"),
    "EM-W-10": Count({
        "two iterations beat one": _fewer({"iterations": 2}, {"iterations": 1}),
        "three beat one": _fewer({}, {"iterations": 1}),
        "three beat two": _fewer({}, {"iterations": 2}),
        "three beat five": _fewer({}, {"iterations": 5}),
    }),
    "EM-W-11": Count({
        "spread loss beats margin loss": _fewer({}, {"loss": "margin"}),
        "margin loss beats cross entropy": _fewer({"loss": "margin"}, {"loss": "cross_entropy"}),
    }),
    "EM-W-12": Count({
        "matrix pose": _fewer({}, {"coordinates": False}),
        "vector pose": _fewer({"pose": "vector"}, {"pose": "vector", "coordinates": False}),
    }),
    "EM-W-13": Count({
        "with coordinates": _fewer({}, {"pose": "vector"}),
        "without": _fewer({"coordinates": False}, {"pose": "vector", "coordinates": False}),
    }),
    "EM-W-14": _fewer({}, {"network": "cnn"}),
    "EM-W-15": _fewer({}, {"activation": "mixing"}),
    "EM-W-16": Count({
        f"novel {factor}s": Above(_viewpoint(factor), "novel_gap", 0, final=False) for factor in _FACTORS.values()
    }),
    "EM-W-17": Above(_arm(), "multi_crop_gain", 0, final=False),
}  # fmt: skip
