"""What a page writes for the names that code gives to metrics and arms."""

from __future__ import annotations

from itertools import product

from capslib.data.registry import SETS

__all__ = ["difference_title", "in_words", "metric_title", "part_titles"]

METRICS = {
    # EM routing
    "beside_matrices_and_two_biases": "parameters besides matrices and two biases a parent",
    "capsules_familiar": "capsules' error on familiar views",
    "capsules_novel": "capsules' error on novel views",
    "ciresan_times": "ratio of Cireşan et al.'s number of parameters to ours",
    "close_wrong_1": "mass of close votes of a wrong class after one iteration",
    "cnn_familiar": "CNN's error on familiar views",
    "cnn_novel": "CNN's error on novel views",
    "dead": "share of dead types",
    "fewer_errors_than_2.56": "reduction of errors from 2.56 %",
    "gradient_orders": "orders of magnitude between gradients",
    "largest_rise": "largest rise of the free energy",
    "multi_crop_error": "test error with several crops",
    "multi_crop_gain": "reduction of the test error by several crops",
    "novel_gap": "lead of capsules on novel views",
    "right_share_of_close": "right class's share of close votes after three iterations",
    "right_share_of_close_2": "right class's share of close votes after two iterations",
    "zero_gap": "CNN's share of zero gradients less that of capsules",
    # the negation limitation
    "even_violation": "distance from even activations",
    "least_even_violation_deeper": "least distance from even activations of two or more layers",
    "least_even_violation_one_layer": "least distance from even activations of one layer",
    "least_odd_violation": "least distance from odd poses",
    "odd_violation": "distance from odd poses",
    "steps_to_20_percent": "steps to an accuracy of 20 %",
    "steps_to_50_percent": "steps to an accuracy of 50 %",
    "train_accuracy": "training accuracy",
    # sparse unsupervised capsules
    "affnist_a_raw": "accuracy on affNIST (a), unmasked",
    "affnist_b_raw": "accuracy on affNIST (b), unmasked",
    "contributing": "number of capsules that an image needs",
    "error_affnist": "squared error on affNIST",
    "error_mnist": "squared error on MNIST",
    "largest_change": "largest share of an image that one capsule draws",
    "largest_first_share": "largest share of first ranks",
    "mnist_raw": "accuracy on MNIST, unmasked",
    "off_one_and_two": "distance from one whole and two partial capsules",
    "smallest_first_share": "smallest share of first ranks",
    "support_left": "mean support below the first rank, as a share of the first",
    "winners": "number of capsules that come first",
    # learned routing
    "largest_fall_of_share": "largest fall of the dense votes' share",
    "least_dense_share": "least share of the dense votes",
    "off_activation": "distance of couplings from activations",
    "off_uniform": "distance of couplings from uniform",
    "parameters_without_routing": "number of parameters without routing",
}
"""What a page writes for a metric, where its name does not say it."""
AREAS = {"auroc": "AUROC", "ap": "average precision"}
SCORES = {
    "palma": "Palma",
    "gini": "Gini",
    "plain": "plain",
    "a": "A",
    "npp": "Npp",
    "nre": "Nre",
    "abc": "ABC",
    "nl": "NL",
}
"""The anomaly scores, in the order of the paper. ``auroc_gini`` is the AUROC of Gini."""
for (_area, _area_title), (_score, _score_title) in product(AREAS.items(), SCORES.items()):
    METRICS[f"{_area}_{_score}"] = f"{_area_title} of {_score_title}"
for _kind in ("anomalous", *SETS["ham10000"].classes):
    METRICS[f"off_{_kind}"] = "distance from the paper's count"
DATA_SETS = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
    "smallnorb": "smallNORB",
    "crispr": "CRISPR",
}
"""What a page writes for a data set."""
ARMS = {
    **DATA_SETS,
    "cnn": "CNN",
    "connectionist": "LSTM",
    "dynamic": "RBA",
    "em": "EM",
    "em_vector": "EM with vectors",
    "off_targets": "off-targets",
    "relu": "ReLU",
    "similarity": "kernel",
    "supcaps": "SUPCAPS",
}
"""What a page writes for a part of an arm's name, where that does not say it."""
for _depth in range(2, 10):
    ARMS[str(_depth)] = f"{_depth} layers"
ACRONYMS = {"bim": "BIM", "cnn": "CNN", "fgsm": "FGSM"}


def in_words(name: str) -> str:
    """Return a name with spaces for underscores, and acronyms in capitals.

    >>> in_words("small_cnn")
    'small CNN'
    """
    return " ".join(ACRONYMS.get(word, word) for word in name.split("_"))


def metric_title(name: str) -> str:
    """Return what a page writes for a metric, or for several in a phrase.

    >>> metric_title("auroc_gini minus auroc_palma"), metric_title("bim_gap_at_0.1")
    ('AUROC of Gini minus AUROC of Palma', 'BIM gap at 0.1')
    """
    return " ".join(METRICS.get(metric, in_words(metric)) for metric in name.split(" "))


def part_titles(arm: str) -> list[str]:
    """Return what a page writes for each part of an arm's name; nothing for an asterisk.

    >>> part_titles("mnist/em_vector/no_bias")
    ['MNIST', 'EM with vectors', 'no bias']
    """
    parts = [part for part in arm.split("/") if part != "*"]
    return [ARMS.get(part, in_words(part)) for part in parts]


def difference_title(arm: str, rival: str) -> str:
    """Return what a page writes for two arms whose difference counts: first what they share.

    >>> difference_title("mnist/em", "mnist/connectionist"), difference_title("sparse", "dense")
    ('MNIST: EM − LSTM', 'sparse − dense')
    """
    parts, rival_parts = part_titles(arm), part_titles(rival)
    shared = []
    if len(parts) == len(rival_parts):
        pairs = list(zip(parts, rival_parts, strict=True))
        shared = [part for part, rival_part in pairs if part == rival_part]
        parts = [part for part, rival_part in pairs if part != rival_part]
        rival_parts = [rival_part for part, rival_part in pairs if part != rival_part]
    difference = f"{', '.join(parts)} − {', '.join(rival_parts)}"
    return f"{', '.join(shared)}: {difference}" if shared else difference
