# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inequality and anomalies
#
# ```{masthead} inequality_anomaly
# ```

# %% tags=["parameters", "remove-cell"]
# smoke: stand-ins, seconds · cpu: real data, reduced networks · paper: the paper's setting
scale = "smoke"
device = "cpu"
seeds = None  # replicates; None: as many as the experiment names for the scale
workers = 0
threads = 1
scheduler = None
data_dir = None
results_dir = None

# %% tags=["remove-input"]
from capslib.lab import claims, frames, plots
from capslib.lab.store import Store
from capslib.papers.inequality_anomaly import EXPERIMENTS, STEM
from capslib.papers.inequality_anomaly.asks import CAPSULES, DATA, SCORES

committed = claims.own_records(STEM, Store(results_dir))
told = {v.claim.id: v for v in claims.verdicts(STEM, store=Store(results_dir))}
said = {k: "not decided yet" if v.status == "waiting" else v.status for k, v in told.items()}
printed = {name: v.claim.value for name, v in told.items()}
rich = [f"INQ-{table}-{data}-10pct" for table in ("T2", "T3") for data in DATA]
of_pairs = frames.select(committed, "off_targets", "paper", sees="all", nrg_pam=False)
GINI, PALMA, LONGER = ("auroc_gini", "auroc_palma", "auroc_length")


def wins(records: list, one: str, other: str) -> int:
    """In how many networks one score has the higher AUROC."""
    return sum(r.metrics[one].value > r.metrics[other].value for r in records)


by_pam = frames.values(
    frames.select(committed, "off_targets", "paper", sees="pam"), "auroc_gini"
)
frames.verdict_box(
    STEM,
    {
        "cells": len(rich),
        "gini": sum(printed[f"{cell}-gini"] >= printed[f"{cell}-palma"] for cell in rich),
        "runs": len(frames.select(committed, "detection", "cpu")),
        "crispr": len(frames.select(committed, "off_targets", "paper")),
        "pairs": len(of_pairs),
        "longer": wins(of_pairs, LONGER, GINI),
        "reduced": len(EXPERIMENTS["detection"].trials("cpu")),
        "full": len(EXPERIMENTS["detection"].trials("paper")),
        "pam": frames.mean(by_pam, 3, (0, 1)),
        "one": said["INQ-W-1"],
        "two": said["INQ-W-4"],
    },
    store=Store(results_dir),
    claim="How unequally a capsule network spreads its couplings tells anomalies from "
    "normal inputs better than its output does: two measures of inequality, Gini and "
    "Palma, beat six other scores nearly everywhere.",
    found="On CRISPR, in networks of the paper’s size, the AUROC of Gini is "
    "{INQ-C-auroc-gini:ours} where the paper has {INQ-C-auroc-gini:theirs}: "
    "{INQ-C-auroc-gini:verdict} {INQ-C-auroc-gini}. The negatives there are substitutes, "
    "and a network that sees three letters of the site already reaches {pam}. On MNIST "
    "with a tenth of outliers a reduced network has {INQ-T2-mnist-10pct-gini:ours}, and "
    "the paper’s {INQ-T2-mnist-10pct-gini:theirs} {INQ-T2-mnist-10pct-gini}. Whether one "
    "of the two measures is best is {one} for diverse outliers {INQ-W-1} and {two} for "
    "diverse inliers {INQ-W-4}.",
    size="Trained at the paper’s own size: {crispr} networks on CRISPR sequences. Reduced "
    "networks on images: {runs} of {reduced} runs are in, and {measured smaller} values "
    "are measured smaller. {waiting} claims wait for the rest. Paper and reruns alike "
    "stop training by the loss of the labelled test set.",
    surprise="The output of the same network ranks anomalies, too: on CRISPR the "
    "difference of its two lengths, which the paper does not try, has a higher AUROC than "
    "Gini in {longer} of {pairs} networks. And Palma should win, as polarised couplings "
    "gather in the tails, but with a tenth of anomalies Gini is at least as good in {gini} "
    "of {cells} cells of the paper’s own tables {INQ-W-9}.",
    settles="Three seeds of the whole grid, {reduced} reduced networks, tell whether the "
    "orders hold at their size; {full} networks of the paper’s size on one large GPU "
    "decide the numbers.",
)

# %% tags=["remove-cell", "front-found"] mystnb={"image": {"alt": "AUROC on MNIST with ten percent of outliers for four scores: open the paper's, filled ours from reduced networks, where they have run."}}
plots.use_style()
COLORS = dict.fromkeys(SCORES, plots.INK)
COLORS["gini"], CHILDREN, COLORS["npp"], COLORS["palma"], COLORS["nre"], ANOMALY = (
    plots.ARM_COLORS
)
NORMAL = plots.INK
SETS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "kmnist": "KMNIST", "cifar10": "CIFAR-10"}
DATASETS = {full: SETS[short] for short, full in DATA.items()}
NAMES = {"palma": "Palma", "gini": "Gini", "plain": "plain", "a": "A", "npp": "Npp"}
NAMES |= {"nre": "Nre", "abc": "ABC", "nl": "NL"}
SHOWN = ("gini", "palma", "npp", "nre")
plots.dots(
    {
        NAMES[score]: (told[f"INQ-T2-mnist-10pct-{score}"], COLORS[score])
        for score in ("gini", "palma", "nre", "npp")
    },
    unit="",
    end=1,
)

# %% tags=["remove-cell", "front-surprise"] mystnb={"image": {"alt": "AUROC of three scores of the same networks on CRISPR: that of the difference of lengths is highest, then come Gini and Palma."}}
plots.dots(
    {
        name: ([r.metrics[metric].value for r in of_pairs], color)
        for name, metric, color in (
            ("difference of lengths", LONGER, plots.INK),
            ("Gini", GINI, COLORS["gini"]),
            ("Palma", PALMA, COLORS["palma"]),
        )
    },
    unit="",
    end=1,
)

# %% tags=["hide-input"]
from functools import partial
from itertools import product

import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib import pyplot as plt

from capslib.data import load
from capslib.inequality import MEASURES, gini, palma
from capslib.lab.batch import Session
from capslib.layers import DenseCapsules, PrimaryCapsules
from capslib.losses import margin_loss
from capslib.networks.inequality_anomaly import AnomalyCapsNet
from capslib.papers.experiment import SCALES
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe
from capslib.papers.inequality_anomaly.scores import lorenz
from capslib.routing import dynamic_routing
from capslib.routing.over_children import OverChildren
from capslib.training import seeded

session = Session.start(
    scale=scale, device=device, seeds=seeds, workers=workers, threads=threads,
    scheduler=scheduler, data_dir=data_dir, results_dir=results_dir,
)  # fmt: skip
torch.set_num_threads(threads)  # small cells: more threads would wait for each other
plots.use_style()


# %% [markdown]
# ## The discovery
#
# A capsule network with two class capsules, one for normal inputs and one for anomalies, sees thousands of normal images and a handful of anomalies. Kirillov and Panov {cite:p}`kirillov2022` do not ask
# what the network sees. They ask how it got there: how unequally the couplings of the anomaly capsule are spread over its children. Two measures from economics say that, the {term}`Gini coefficient` and
# the {term}`Palma ratio`. The authors expect Palma to win, because polarised couplings gather in the tails.
#
# Gini is ahead instead ({numref}`fig-inq-rivals`). In the paper's tables it is higher with a tenth of anomalies in all eight cells, and on CRISPR it is higher in all ten of our networks of the paper's size, by
# about a quarter of a point of AUROC. And what the network sees ranks as well as how it got there. The paper's *plain* score keeps only which of the two capsules is longer. The *difference* of the two lengths, which
# the paper does not try, beats Gini in the same ten networks, by about a point.


# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels of differences of AUROC to Gini. Left: Palma lies below Gini on CRISPR in all ten networks, and in the paper's tables most of all with ten percent of anomalies, by up to 0.04. Right: the difference of lengths lies above Gini on CRISPR in all ten networks."}, "figure": {"caption": "Does any score of a network beat the Gini coefficient of its couplings? AUROC minus that of Gini, which is the line at zero. Lengths: that of the anomaly capsule minus that of the normal capsule. Open: the paper's tables, a mark for each set and setup. Filled: ours. On CRISPR a small mark is a network and the large one their mean; on images a mark is the mean over the ten classes of a set and setup. The rows name size and n, the seeds; the negatives of CRISPR are substitutes.", "name": "fig-inq-rivals"}}
def by_seed(records: list, experiment: str = "detection") -> pd.DataFrame:
    """The metrics of each seed of a set, setup and share: the mean over its classes, if it has ten."""
    found = frames.metrics(frames.best(records, experiment))
    if found.empty:
        return found
    found = found.astype({"kind": float, "percent": float}).fillna({"kind": 0, "percent": -1})
    cells = found.groupby(["data", "setup", "percent", "seed"])
    whole = cells["kind"].nunique() == (10 if experiment == "detection" else 1)
    means = cells.mean(numeric_only=True)[whole]
    return means.assign(scale=found["scale"].iloc[0]).reset_index()


def ahead(metric: str, share: float | None) -> tuple[list, list, str]:
    """How far a score lies above Gini, on pairs by network and on images by cell; and n."""
    if share is None:
        apart = [r.metrics[metric].value - r.metrics[GINI].value for r in of_pairs]
        return apart, apart and [sum(apart) / len(apart)], f"paper's size, n = {len(of_pairs)}"
    of = by_seed(committed, "lesions" if share < 0 else "detection")
    of = of[of["percent"] == share] if len(of) else of
    if of.empty:
        return [], [], "not run yet"
    cells = of.groupby(["data", "setup"])
    n = sorted({*cells.size()})
    size = f"{of['scale'].iloc[0]} scale, n = {'–'.join(map(str, n[:1] + n[1:][-1:]))}"
    return [], list(cells[metric].mean() - cells[GINI].mean()), size


lesions_too = [f"INQ-T4-{setup}" for setup in "ABCD"]
ROWS = {"CRISPR": (None, ["INQ-C-auroc"]), "skin lesions": (-1, lesions_too)}
for share in (10.0, 1.0, 0.1):
    cells = [f"INQ-{t}-{d}-{share:g}pct" for t, d in product(("T2", "T3"), DATA)]
    ROWS[f"images, {share:g} %"] = (share, cells)
figure, axes = plots.panels(2, height=3.1, sharex=True, sharey=True)
for axis, (name, rival, color) in zip(
    axes, (("Palma", "palma", COLORS["palma"]), ("lengths", "length", plots.INK)), strict=True
):
    axis.axvline(0, color=COLORS["gini"], lw=1.4)
    above = dict(transform=axis.get_xaxis_transform(), ha="center", fontsize=9.5)
    axis.text(0, 1.02, "Gini", color=COLORS["gini"], **above)
    for y, (share, cells) in enumerate(ROWS.values()):
        every, means, _ = ahead(f"auroc_{rival}", share)
        theirs = [printed[f"{c}-palma"] - printed[f"{c}-gini"] for c in cells]
        if rival == "palma":
            axis.plot(theirs, [y - 0.2] * len(cells), "o", color=color, mfc="none", ms=5)
        axis.plot(every, [y + 0.2] * len(every), "o", color=color, ms=3, alpha=0.4, mew=0)
        axis.plot(means, [y + 0.2] * len(means), "o", color=color, ms=5.5, zorder=3)
    axis.set_title(name, color=color, fontsize=9.5)
    axis.set_xlabel("AUROC minus that of Gini")
    axis.grid(True, axis="both")
axes[0].set_yticks(
    range(len(ROWS)),
    [f"{name}\n{ahead(GINI, share)[2]}" for name, (share, _) in ROWS.items()],
    fontsize=8.5,
)
axes[0].set_ylim(len(ROWS) - 0.5, -0.5)
plt.show()

# %% tags=["remove-input"]
of_ten = by_seed([*committed])
shorter = int((of_ten[LONGER] > of_ten[GINI]).sum()) if len(of_ten) else 0
sizes = " and ".join(sorted({*of_ten["scale"]})) if len(of_ten) else "cpu"
Markdown(
    f"On images, at {sizes} scale, the difference of lengths lies above Gini in {shorter} "
    f"of {len(of_ten)} runs of ten classes."
)

# %% [markdown]
# Equation {eq}`eq-over-children` offers a reason. A coupling grows by agreements $\langle \mathbf v_j, \hat{\mathbf u}_{j|i} \rangle$, and none of these exceeds $\lVert \mathbf v_j \rVert \lVert \hat{\mathbf u}_{j|i} \rVert$. So a short parent leaves its couplings nearly equal,
# and Gini may measure the length once more. {ref}`The table of the lengths <inq-lengths>` has the numbers.
#
# ## The idea on a toy
#
# Sixteen children vote for one parent. At first their votes have nothing in common; then five of them agree ({numref}`fig-inq-toy`). Routing that normalises over the *children* gives most of the parent's
# coupling to these five. The {term}`Lorenz curve` draws how much the poorest children have together; twice the area between curve and diagonal is the Gini coefficient.

# %% tags=["hide-input", "thumbnail"] mystnb={"image": {"alt": "Couplings of sixteen children, sorted, and their Lorenz curves. Without agreement the couplings are nearly equal, with a Gini coefficient of 0.10, and the curve stays close to the diagonal; where five children agree they hold 97 percent of the coupling, Gini is 0.70, and the curve sags."}, "figure": {"caption": "What does agreement do to the couplings? Couplings of sixteen children, sorted, with Gini and Palma, and their Lorenz curves. In the colour of the second title: the five children that agree, and the curve of that panel; dashed: equal shares.", "name": "fig-inq-toy"}}
with seeded(1):
    scattered = 0.7 * torch.randn(16, 1, 6)  # [I, J, D]
    agreeing = scattered.clone()
    agreeing[:5] = torch.tensor([2.0, 1.0, -1.0, 0.0, 2.0, 1.0]) + 0.2 * torch.randn(5, 1, 6)
figure, axes = plots.panels(3, height=2.5)
toys = (("no agreement", scattered, NORMAL), ("five agree", agreeing, ANOMALY))
for axis, (title, votes, color) in zip(axes, toys, strict=False):
    shares = dynamic_routing(votes[None], competition=OverChildren()).coupling[0, :, 0]
    order = shares.argsort()
    inks = [color if child < 5 else NORMAL for child in order]
    axis.bar(range(16), shares[order].tolist(), color=inks)
    axis.set(xticks=[], xlabel="children, sorted", ylim=(0, 0.3))
    about = f"{title}\nGini {gini(shares):.2f}, Palma {palma(shares):.1f}"
    axis.set_title(about, color=color, fontsize=9.5)
    axes[2].plot(torch.linspace(0, 1, 21), lorenz(shares[None])[0], color=color)
axes[0].set_ylabel("coupling")
axes[2].plot((0, 1), (0, 1), color=plots.INK, ls="--", lw=1)
axes[2].set(xlabel="share of the children", ylabel="share of the coupling")
axes[2].set_title("Lorenz curves\n", fontsize=9.5)
plt.show()

# %% [markdown]
# ## The method
#
# ### The network

# %% tags=["hide-input"] mystnb={"image": {"alt": "The network from left to right: image, convolution, 1152 primary capsules, two class capsules and the decoder, with the shape of each."}, "figure": {"caption": "Which couplings are measured? The paper's network for MNIST and its like with the shapes of its layers, capsules as number by dimension. The couplings are those of the one routing, between primary and class capsules; the decoder sees the longer class capsule.", "name": "fig-inq-network"}}
network, image = AnomalyCapsNet((1, 28, 28)), torch.zeros(1, 1, 28, 28)
with torch.no_grad():
    maps = network.conv(image)
    children, _ = network.primary(maps.relu())
    parents, *_ = network.classes(children, torch.ones(children.shape[:2]))
sizes = [image.shape[2:], maps.shape[1:], children.shape[1:], parents.shape[1:], (28, 28)]
names = ("image", "feature maps", "primary capsules", "class capsules", "decoder")
leads = ("9×9, ReLU", "9×9, stride 2", "routing", "longer one", "")
shapes = (" × ".join(map(str, size)) for size in sizes)
plots.network(list(zip(names, shapes, leads, strict=True)), CHILDREN)
plt.show()

# %% [markdown]
# ```{fold} The network in fifteen lines, one training step, and a learning curve
# ```


# %%
class Detector(torch.nn.Module):
    """The network above, without its decoder."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 256, 9)
        self.primary = PrimaryCapsules(256, 32, 32, kernel=9, stride=2)
        routing = dict(routing="dynamic_over_children", weight_std=1.0)
        self.classes = DenseCapsules(1152, 2, 32, 16, **routing)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pose, activation = self.primary(self.conv(images).relu())
        _, lengths, coupling = self.classes(pose, activation)
        return lengths, gini(coupling[..., 1], dim=1)  # Gini of the anomaly capsule


# %%
digits = load("digits", "train", data_dir=session.settings.data_dir)
images = torch.tensor(digits.images[:16]).float() / digits.images.max()
images = torch.nn.functional.interpolate(images, size=28)
labels = torch.tensor(digits.labels[:16] != 0).long()  # zeros are normal
with seeded(0):
    network = Detector()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
loss = margin_loss(network(images)[0], labels)
loss.backward()
torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
optimizer.step()
after = margin_loss(network(images)[0], labels)
Markdown(f"Margin loss of 16 digits: {loss:.3f} before the step, {after:.3f} after it.")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels, a line for each network: the loss of a training batch over steps falls steeply at first and then slowly; the loss of the test images over epochs falls and stays higher."}, "figure": {"caption": "How does such a network learn? Loss of a training batch, and of the test images by which the released code stops the training, a line for each network. The titles name data, size and n.", "name": "fig-inq-learning"}}
of_set = frames.best(committed, "detection", setup="outliers", percent=10.0, data="mnist")
learners = of_set or session.run(STEM, "detection")
found = DATASETS.get(learners[0].config["data"], "stand-in")
about = f"{found}, {learners[0].trial.scale} scale, n = {len(learners)} networks"
figure, axes = plots.panels(2, height=2.4)
for r in learners:
    axes[0].semilogy(r.series["steps"], r.series["loss"], color=plots.INK, lw=0.8, alpha=0.5)
    axes[1].semilogy(
        r.series["epochs"], r.series["stop_loss"], color=plots.INK, lw=0.8, alpha=0.5
    )
for axis, x, of in zip(axes, ("step", "epoch"), ("training batch", "test images"), strict=True):
    axis.set_xlabel(x)
    axis.set_title(f"{of}\n{about}", fontsize=9.5)
axes[0].set_ylabel("loss (logarithmic)")
plt.show()

# %% [markdown]
# ### Routing over the children
#
# The released code takes the softmax over the children, which the paper does not say: for every parent $j$ the couplings of all children sum to one, and the two class capsules do not
# compete. With logits $b_{ij} = 0$ at first, each of three iterations has
#
# ```{math}
# :label: eq-over-children
# \begin{aligned}
# c_{ij} &= \frac{e^{b_{ij}}}{\sum_k e^{b_{kj}}}, \\
# \mathbf v_j &= \operatorname{squash}\Bigl(\sum_i c_{ij}\, \hat{\mathbf u}_{j|i}\Bigr), \\
# b_{ij} &\leftarrow b_{ij} + \langle \mathbf v_j, \hat{\mathbf u}_{j|i} \rangle .
# \end{aligned}
# ```
#
# The loop is that of routing by agreement. Its `competition` is `OverChildren`, whose softmax is the first line of the equation.
#
# ```{live-source} capslib.routing.dynamic.dynamic_routing
# :given: bias=None
# :test: tests/routing/conformance.py::it_is_what_the_plain_loops_say
# ```
#
# ```{live-source} capslib.routing.over_children.OverChildren
# :test: tests/routing/conformance.py::couplings_sum_to_one
# ```
#
# ### Two measures of inequality
#
# Of the couplings $c_1 \dots c_I$ of the anomaly capsule, sorted as $c_{(1)} \le \dots \le c_{(I)}$, with quantiles $Q$:
#
# ```{math}
# :label: eq-gini
# \begin{aligned}
# \mathrm{Gini} &= \frac{\sum_k (2k - I - 1)\, c_{(k)}}{I \sum_k c_{(k)}}, \\
# \mathrm{Palma} &= \frac{Q_{0.9}(c)}{Q_{0.4}(c)} .
# \end{aligned}
# ```
#
# ```{live-source} capslib.inequality.gini
# :test: tests/test_inequality.py::test_gini_is_its_double_sum
# ```
#
# ```{live-source} capslib.inequality.palma
# :test: tests/test_inequality.py::test_palma_has_interpolated_quantiles
# ```
#
# ### The other scores
#
# *Plain* is the predicted class. *A* is the length of the normal capsule minus that of the anomaly capsule, plus the reconstruction error {cite:p}`piciarelli2019`. We use the release's sign; a variant flips it.
# *Npp* and *Nre* {cite:p}`li2019` measure how unsure the network is of any class, and how badly it reconstructs. Two baselines have no capsules: ABC, an autoencoding binary classifier, and NL, a Boltzmann machine that also unlearns anomalies
# (negative learning).
#
# ```{fold} The network, its loss, and the lines that compute the scores
# ```
#
# ```{live-source} capslib.networks.inequality_anomaly.AnomalyCapsNet
# :test: tests/papers/test_inequality_anomaly.py::test_a_network_learns_to_tell_digits_apart
# ```
#
# ```{live-source} capslib.papers.inequality_anomaly.recipe.AnomalyLoss
# :test: tests/papers/test_inequality_anomaly.py::test_the_released_loss_and_its_repaired_form_by_hand
# ```
#
# ```{live-source} capslib.papers.inequality_anomaly.scores.scores
# :test: tests/papers/test_inequality_anomaly.py::test_in_which_direction_every_score_points
# ```
#
# ## Experiments
#
# One network is trained for each set, setup, share of anomalies and class. Six of the eight scores read the same network, so their claims share its runs. In the paper Gini leads with 10 % anomalies on all four sets and
# in both setups. With 0.1 % of diverse outliers, which is six images, the reconstruction error *Nre* beats it on three of four sets.

# %%
detection = session.run(STEM, "detection")

# %% tags=["hide-input"]
grids = [EXPERIMENTS["detection"].grid(of)[0] for of in SCALES]
alike = [f for f in AnomalyRecipe.model_fields if len({getattr(c, f) for c in grids}) == 1]
arm = [*AnomalyRecipe.ARM, *alike]
display(Markdown("Where the scales differ, for MNIST and its like:"))
frames.configuration(EXPERIMENTS["detection"], arm=arm).pipe(frames.styled)

# %% [markdown]
# ### Diverse outliers (Table 2)
#
# One class is normal, the nine others are anomalies. Which score ranks anomalies above normal images?


# %% tags=["hide-input"] mystnb={"image": {"alt": "AUROC over the share of outliers in training, a panel for each of four data sets. In the paper Gini and Palma rise with the share and lead at ten percent, while Npp falls on three sets; Nre leads at 0.1 percent on three sets."}, "figure": {"caption": "Diverse outliers: which score tells anomalies best, and how many does it need? AUROC over the share of anomalies in training. Open, with lines: paper, mean over ten classes. Filled, to the right: ours, where all ten classes have run; the titles name size and n, the seeds. Grey: the other four scores. Dotted: guessing.", "name": "fig-inq-outliers"}}
PERCENTS = (0.1, 1.0, 10.0)
told = {v.claim.id: v for v in claims.verdicts(STEM, store=Store(results_dir))}


def cell(of: str, data: str, share: float) -> dict:
    """The verdicts of a cell of a table, by score."""
    return {s: told[f"INQ-{of}-{data}-{share:g}pct-{s}"] for s in SCORES}


def spread(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Heights of labels beside the ends of lines, at least a gap apart."""
    found: dict[str, float] = {}
    for name in sorted(heights, key=heights.get):
        found[name] = max(heights[name], max(found.values(), default=-1) + gap)
    too_high = max(0, max(found.values()) - max(heights.values()) - gap)
    return {name: height - too_high for name, height in found.items()}


def ran(verdicts: list) -> str:
    """At which scale and how often something ran."""
    found = sorted({(v.scale, v.n) for v in verdicts if v.ours is not None})
    return ", ".join(f"{of} scale, n = {n}" for of, n in found) or "not run yet"


def over_shares(of: str, setup: str, across: int = 4, width: float = plots.WIDTH) -> plt.Figure:
    """A table of the paper as small multiples, one for each set."""
    rows = 4 // across
    size = (width, 2.6 * rows)
    figure, axes = plt.subplots(rows, across, figsize=size, sharex=True, sharey=True)
    for axis, data in zip(axes.flat, DATA, strict=True):
        rows_of = [cell(of, data, share) for share in PERCENTS]
        for score in sorted(SCORES, key=SHOWN[::-1].count):
            theirs = [row[score].claim.value for row in rows_of]
            ours = [(x + 0.16, row[score].ours) for x, row in enumerate(rows_of)]
            ours = [(x, y) for x, y in ours if y is not None]
            ink = dict(color=COLORS[score], alpha=1 if score in SHOWN else 0.35)
            axis.plot(theirs, "o-", mfc="none", lw=1, ms=4.5, **ink)
            axis.plot(*zip(*ours or [([], [])], strict=True), "o", ms=5, zorder=5, **ink)
        size_n = ran([v for row in rows_of for v in row.values()])
        axis.set_title(f"{SETS[data]}\n{size_n}", fontsize=9)
        axis.axhline(0.5, color=plots.INK, ls=":", lw=1)
        axis.set_xlim(-0.25, 2.35)
        axis.set_xticks(range(3), ["0.1", "1", "10 %"])
        if axis.get_subplotspec().is_last_col():
            ends = {s: rows_of[2][s].claim.value for s in SHOWN}
            low, high = axis.get_ylim()
            for score, y in spread(ends, 0.1 * (high - low)).items():
                at = dict(color=COLORS[score], va="center", fontsize=9.5)
                axis.text(2.45, y, NAMES[score], **at)
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(f"AUROC, {setup}")
    return figure


figure = over_shares("T2", "outliers")
figure.narrow = partial(over_shares, "T2", "outliers", 2, plots.PHONE)
plt.show()


# %% tags=["hide-input"]
def table(of: str, rows: dict, columns: dict, scores: tuple = SCORES) -> pd.DataFrame:
    """The claims of a table of the paper, by set and score and by share."""
    cells = {
        (name, NAMES[s]): [f"INQ-{of}-{r}{c}{s}" for c in columns]
        for r, name in rows.items()
        for s in scores
    }
    found = pd.DataFrame.from_dict(cells, orient="index", columns=list(columns.values()))
    found.index = pd.MultiIndex.from_tuples(found.index, names=["", "score"])
    return found


def agreement(of: pd.DataFrame) -> pd.DataFrame:
    """How our numbers agree with the paper's, column by column: description, not a verdict."""
    rows = {}
    for column in of:
        cells = [told[claim] for claim in of[column]]
        pairs = [(v.claim.value, v.ours) for v in cells if v.ours is not None]
        if len(pairs) > 2:
            both = pd.DataFrame(pairs, columns=["paper", "ours"])
            apart = (both["paper"] - both["ours"]).abs()
            rank = both["paper"].corr(both["ours"], method="spearman")
            rows[column] = (
                len(both),
                f"{rank:.2f}",
                f"{apart.max():.3f}",
                f"{(apart <= 0.02).sum()}",
            )
    names = ["cells that have run", "rank correlation", "largest difference", "within 0.02"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names).T


def every_cell(of: pd.DataFrame, precisions: pd.DataFrame, about: str) -> None:
    """A table cell by cell with its agreement, and the average precisions that belong to it."""
    display(frames.side_by_side(STEM, of, store=Store(results_dir)))
    display(agreement(of).pipe(frames.styled))
    display(Markdown(about))
    display(frames.side_by_side(STEM, precisions, store=Store(results_dir)))


def both(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def to_see(of: str) -> str:
    """What a table shows where all six scores of a network have run, in three sentences."""
    whole = {
        (data, share): {s: cell(of, data, share)[s] for s in CAPSULES}
        for data, share in product(DATA, PERCENTS)
    }
    best = {
        key: (
            max(CAPSULES, key=lambda s: row[s].claim.value),
            max(CAPSULES, key=lambda s: row[s].ours),
        )
        for key, row in whole.items()
        if all(v.ours is not None for v in row.values())
    }
    rich, poor = ([data for data, p in best if p == share] for share in (10.0, 0.1))
    if not (rich and poor):
        return "No set has run with all of its classes yet."
    led = sum(best[data, 10.0][1] in ("gini", "palma") for data in rich)
    theirs = sum(best[data, 10.0][0] in ("gini", "palma") for data in rich)
    few = []
    for k, data in product((1, 0), poor):
        name = best[data, 0.1][k]
        v = whole[data, 0.1][name]
        few.append(f"{NAMES[name]} on {SETS[data]} ({v.ours if k else v.claim.value:.3f})")
    far = max(
        ((key, s) for key in best for s in SHOWN),
        key=lambda at: abs(whole[at[0]][at[1]].ours - whole[at[0]][at[1]].claim.value),
    )
    (data, share), score = far
    v = whole[data, share][score]
    return (
        f"With 10 % of anomalies Gini or Palma is the best of the six scores of a network "
        f"on {led} of {len(rich)} sets that have run; in the paper on {theirs} of these. "
        f"With 0.1 % the best is {both(few[: len(poor)])} here, and "
        f"{both(few[len(poor) :])} in the paper. Of the scores shown, the furthest from "
        f"the paper is {NAMES[score]} on {SETS[data]} with {share:g} %: {v.ours:.3f} here, "
        f"{v.claim.value:.3f} there."
    )


def what_ran(of: str) -> dict[str, str]:
    """The sets of which a table has a score of ours."""
    return {
        f"{data}-": SETS[data]
        for data in DATA
        if any(v.ours is not None for p in PERCENTS for v in cell(of, data, p).values())
    }


FULL_NAMES = {f"{short}-": name for short, name in SETS.items()}
SHARES = {"0.1pct-": "0.1 %", "1pct-": "1 %", "10pct-": "10 %"}


def how_to_read(of: str) -> Markdown:
    every = [cell(of, data, share)[s] for data, share, s in product(DATA, PERCENTS, SHOWN)]
    return Markdown(
        "AUROC. Each cell reads *paper, sign, ours*: `=` where they differ by 0.02 at most, "
        "`<` where ours is higher, `>` where it is lower. Both are means over ten classes; "
        f"ours: {ran(every)}. Point at a square for the interval over seeds."
    )


display(how_to_read("T2"))
frames.side_by_side(STEM, table("T2", what_ran("T2"), SHARES, SHOWN), store=Store(results_dir))

# %% tags=["remove-input"]
Markdown(to_see("T2"))

# %% tags=["hide-input"]
outliers = table("T2", FULL_NAMES, SHARES)
claims.page_table(STEM, "INQ-W-1", "INQ-W-2", "INQ-W-3")

# %% [markdown]
# ```{fold} Every cell of Table 2, and of its average precisions
# ```

# %% tags=["hide-input"]
about = "Average precision (Supplementary Table 1); guessing has 0.9:"
every_cell(outliers, table("S1", FULL_NAMES, SHARES), about)

# %% [markdown]
# ### Diverse inliers (Table 3)
#
# Now one class is the anomaly, and the nine others are normal. Does the order of the scores stay?

# %% tags=["hide-input"] mystnb={"image": {"alt": "AUROC over the share of anomalies in training with diverse inliers, a panel for each of four data sets. In the paper Gini and Palma lead from one percent on, but for CIFAR-10, and Npp falls below guessing on MNIST."}, "figure": {"caption": "Diverse inliers: which score tells anomalies best, and how many does it need? AUROC over the share of anomalies in training. Open, with lines: paper, mean over ten classes. Filled, to the right: ours, where all ten classes have run; the titles name size and n, the seeds. Grey: the other four scores. Dotted: guessing.", "name": "fig-inq-inliers"}}
figure = over_shares("T3", "inliers")
figure.narrow = partial(over_shares, "T3", "inliers", 2, plots.PHONE)
plt.show()

# %% tags=["hide-input"]
display(how_to_read("T3"))
frames.side_by_side(STEM, table("T3", what_ran("T3"), SHARES, SHOWN), store=Store(results_dir))

# %% tags=["remove-input"]
Markdown(to_see("T3"))

# %% tags=["hide-input"]
inliers = table("T3", FULL_NAMES, SHARES)
claims.page_table(STEM, "INQ-W-4", "INQ-W-5", "INQ-W-9")

# %% [markdown]
# ```{fold} Every cell of Table 3, and of its average precisions
# ```

# %% tags=["hide-input"]
about = "Average precision (Supplementary Table 2); guessing has 0.1:"
every_cell(inliers, table("S2", FULL_NAMES, SHARES), about)

# %% [markdown]
# ### What the couplings look like (Figure 2)
#
# Do the couplings of the anomaly capsule change between normal inputs and anomalies, and those of the normal capsule hardly?

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels with the same picture, mirrored. In each capsule the couplings are spread widely for the inputs that it stands for and pile up near an equal share for the others: in the normal capsule for anomalies, in the anomaly capsule for normal inputs."}, "figure": {"caption": "Whose couplings change when an anomaly comes? Share of the children by the logarithm of their coupling, relative to an equal share; mean over the networks with 10 % of diverse outliers that the titles name, with size and n.", "name": "fig-inq-couplings"}}
most = frames.best([*committed, *detection], "detection", setup="outliers", percent=10.0)
of_mnist = [r for r in most if r.config["data"] == "mnist"]
shown = of_mnist or [r for r in most if r.config["data"] == most[0].config["data"]]
size = f"{shown[0].trial.scale} scale, n = {len(shown)} networks"
(found,) = {DATASETS.get(r.config["data"], "stand-in") for r in shown}
figure, axes = plots.panels(2, height=2.6, sharey=True)
for axis, capsule in zip(axes, ("normal", "anomaly"), strict=True):
    for y, (of, color) in enumerate((("normal", NORMAL), ("anomalies", ANOMALY))):
        series = f"couplings_{capsule}_capsule_{of}"
        shares = torch.tensor([r.series[series] for r in shown]).mean(dim=0)
        axis.plot(shown[0].series["log_shares"], 100 * shares, color=color)
        words = "normal inputs" if of == "normal" else of
        at = dict(color=color, transform=axis.transAxes, fontsize=9.5)
        axis.text(0.03, 0.88 - 0.11 * y, words, **at)
    axis.set(xlabel="ln(I · c)", xlim=(-4.2, 3.2), xticks=range(-4, 4))
    axis.set_title(f"{capsule} capsule\n{found}, {size}", fontsize=9.5)
axes[0].set_ylabel("children (%)")
plt.show()

# %% tags=["remove-input"]
of_ten = frames.metrics(frames.best([*committed, *detection], "detection", percent=10.0))
falls = int((of_ten["auroc_gini_normal"] < 0.5).sum())
Markdown(
    f"Both change. In {falls} of {len(of_ten)} networks with 10 % of anomalies "
    f"({of_ten['scale'].iloc[0]} scale) the Gini coefficient of the *normal* capsule falls "
    f"when an anomaly comes. Its AUROC is {of_ten['auroc_gini_normal'].mean():.3f}, and "
    f"that of the anomaly capsule is {of_ten['auroc_gini'].mean():.3f}. Read the other way "
    "round, the one tells as much as the other. The paper expects the normal capsule to "
    "change hardly."
)

# %% tags=["hide-input"]
claims.page_table(STEM, "INQ-W-8")

# %% [markdown]
# ### Skin lesions and guide RNAs (Table 4, CRISPR)
#
# Does it work on images of skin, and on pairs of guide and site, which are no images at all? Setup A tells malignant from benign lesions, B melanoma from benign ones, C malignant lesions from moles, and D melanoma
# from moles. The negatives of the CRISPR set as prepared are substitutes, so its verdicts say *derived data*.

# %%
lesions = session.run(STEM, "lesions")
pairs = session.run(STEM, "off_targets")

# %% tags=["hide-input"]
claims.page_table(STEM, "INQ-W-6", "INQ-W-7")

# %% [markdown]
# Cas9 cuts a site only next to a short motif, the PAM. More than half of the substitutes for negatives lack it, and few of the positives do. How much does that alone give away? One arm keeps only sites with the
# motif (NRG). Another sees the three letters in its place and nothing else. Three letters alone reach an AUROC of 0.873, so these verdicts partly measure how the substitutes were chosen.

# %% tags=["hide-input"]
every = frames.best([*committed, *pairs], "off_targets")
measured = frames.metrics(every)
measured["CRISPR"] = [
    "PAM only" if sees == "pam" else "sites with NRG" if nrg else "all pairs"
    for sees, nrg in zip(measured["sees"], measured["nrg_pam"], strict=True)
]
columns = {GINI: "AUROC of Gini", PALMA: "of Palma", "ap_gini": "AP of Gini"}
display(Markdown(frames.standing(every)))
frames.means(measured, "CRISPR", columns, 3, (0, 1)).pipe(frames.styled)

# %% [markdown]
# ```{fold} Every cell of Table 4 and of the CRISPR section, and the counts of Table 1
# ```

# %% tags=["hide-input"]
letters = {f"{letter}-": letter for letter in "ABCD"}
for name, of in (
    ("AUROC (Table 4)", "T4"),
    ("Average precision (Supplementary Table 3)", "S3"),
):
    display(Markdown(f"{name}:"))
    display(
        frames.side_by_side(
            STEM, table(of, {"": "HAM10000"}, letters), store=Store(results_dir)
        )
    )
display(Markdown("CRISPR off-targets:"))
kinds = {"auroc-": "AUROC", "ap-": "average precision"}
display(frames.side_by_side(STEM, table("C", {"": "CRISPR"}, kinds), store=Store(results_dir)))
counts = session.run(STEM, "counts")
claims.page_table(STEM, "INQ-T1-", "INQ-C-n-")

# %% [markdown]
# ## Deviations
#
# What matters most at cpu scale: 64 filters instead of 256, 288 children instead of 1,152, and at most 10,000 normal training images.
#
# ```{fold} All deviations of the records on this page
# ```

# %% tags=["hide-input"]
frames.deviations([*committed, *detection, *lesions, *pairs]).pipe(frames.styled).hide(
    axis="index"
)

# %% [markdown]
# ## Errata of the paper
#
# 32 of the 224 cells of Tables 2 to 4 differ from the numbers stored in the authors' notebooks, most of them in the fourth digit. These matter:
#
# | where | article | notebooks or code |
# |---|---|---|
# | CRISPR, average precision | Palma 0.6876, Gini 0.6571 | the two are swapped |
# | Table 3, 0.1 %, capsule scores | standard deviations as in the other columns | these divide by n − 1, the others by n; CIFAR-10 has nine of its ten runs |
# | Table 3, MNIST 10 %, Palma | ± 0.0035 | ± 0.035 |
# | Table 4, caption | which letter is which setup | text and code agree with each other, and the caption permutes B, C and D |
# | eq. 3, Gini | no word of sorting | values [are sorted first](https://github.com/bakirillov/capsule_ad/blob/af07add40ff33c1a32606ca4c4a656a05cece360/src/compute_metrics.py#L43), without which it is no Gini coefficient |
# | eq. 5, A | mean of the squared error | its sum, which then outweighs the lengths by orders of magnitude |
# | training | a validation set | it [is the test set](https://github.com/bakirillov/capsule_ad/blob/af07add40ff33c1a32606ca4c4a656a05cece360/src/data_module.py#L169-L174), labels included {cite:p}`kirillov2022code` |
#
# ## Pitfalls
#
# ### The softmax over the wrong axis
#
# Over the *parents*, as in Sabour et al. {cite:p}`sabour2017`, every child gives one unit to two parents, and the inequality over children is another quantity. `couplings_sum_to_one` of the conformance
# suite holds each routing to the axis that it declares.
#
# ```{fold} The mistake as a switch, and its symptom
# ```

# %% tags=["hide-input"] mystnb={"image": {"alt": "Gini coefficient of the couplings over how strongly five of sixteen children agree. Normalised over children it rises from 0.03 to 0.74; normalised over parents it starts at 0.30 without any agreement and stays below 0.41."}, "figure": {"caption": "Does the Gini coefficient see agreement? Sixteen children vote for two parents; five agree about the second. Over the children, as released, it rises with the agreement. Over the parents, as in routing by agreement, it is there before and rises little. Toy votes, one draw.", "name": "fig-inq-axis"}}
strengths = torch.linspace(0, 3, 25)
with seeded(2):
    noise, side = 0.5 * torch.randn(16, 2, 6), torch.randn(6)
figure, axis = plt.subplots(figsize=(plots.WIDTH, 2.4))
names = {"over children": CHILDREN, "over parents": plots.routing_color("dynamic")}
for competition, color in zip((OverChildren(), None), names.values(), strict=True):
    seen = []
    for strength in strengths:
        votes = noise.clone()
        votes[:5, 1] += strength * side
        options = {} if competition is None else {"competition": competition}
        seen.append(float(gini(dynamic_routing(votes[None], **options).coupling[0, :, 1])))
    axis.plot(strengths, seen, color=color)
plots.key(axis, names)
axis.set(xlabel="strength of the agreement", ylabel="Gini coefficient")
plt.show()

# %% [markdown]
# ### A detector that never says anomaly
#
# *Plain* is a hard label. An AUROC of 0.5000 ± 0.0000 says that no input was ever called an anomaly. It does not say that the network knows nothing: {ref}`the lengths of its capsules <inq-lengths>` rank inputs better.
# `test_in_which_direction_every_score_points` holds each score to its direction.
#
# ## Beyond the paper
#
# (inq-lengths)=
# ### Do the lengths tell as much?
#
# The paper compares measures of inequality with a hard label, with *Npp*, and with reconstructions. It leaves out the most direct score, the length of the anomaly capsule minus that of the normal capsule. We
# measure it on the same networks.

# %% tags=["remove-input"]
apart = [r.metrics[LONGER].value - r.metrics[GINI].value for r in of_pairs]
behind = [r.metrics[GINI].value - r.metrics[PALMA].value for r in of_pairs]
Markdown(
    f"In {len(of_pairs)} networks on CRISPR the difference of lengths lies above Gini by "
    f"{frames.mean(apart, 4, None)}, and Gini above Palma by "
    f"{frames.mean(behind, 4, None)}. So no coupling is needed to rank these pairs as "
    f"well. The negatives are substitutes."
)

# %% [markdown]
# ```{fold} AUROC of lengths and couplings, cell by cell
# ```

# %% tags=["hide-input"]
scored = {GINI: "Gini", LONGER: "lengths", "auroc_plain": "plain"}
cells = by_seed([*committed, *detection])
if len(cells):
    cells["set"] = cells["data"].map(lambda name: DATASETS.get(name, name))
    cells["share"] = cells["percent"].map("{:g} %".format)
on_pairs = frames.metrics(of_pairs).assign(set="CRISPR", setup="pairs", share="–")
of_lengths = pd.concat([on_pairs, cells]) if len(of_pairs) else cells
by = ["set", "setup", "share"]
sizes = " and ".join(sorted({*cells["scale"]})) if len(cells) else "cpu"
display(
    Markdown(
        "AUROC with its interval over seeds. CRISPR: networks of the paper’s size. Images: "
        f"{sizes} scale, a seed is the mean over ten classes."
    )
)
if len(of_lengths):
    told_of = frames.means(of_lengths, by, scored, 3, (0, 1)).reset_index()
    display(frames.styled(told_of).hide(axis="index"))

# %% [markdown]
# ### Other routings, other measures
#
# Does inequality detect anomalies when parents compete, as in RBA and EM routing? And do other measures of inequality do better than Gini and Palma? The authors conjecture the first and do not
# ask the second.

# %%
routings = session.run(STEM, "routings")

# %% [markdown]
# ```{fold} AUROC by routing and measure, as far as it has run
# ```

# %% tags=["hide-input"]
of_routings = frames.best([*committed, *routings], "routings")
measured = frames.metrics(of_routings)
measured["routing"] = measured["routing"].map(plots.routing_name)
columns = {f"auroc_{name}": name for name in MEASURES}
display(Markdown(f"AUROC by routing and measure. {frames.standing(of_routings)}"))
display(frames.means(measured, "routing", columns, digits=3, bounds=(0, 1)).pipe(frames.styled))
claims.page_table(STEM, "INQ-W-10")

# %% [markdown]
# ### What leaks when early stopping sees the test set
#
# The released code stops by the loss of the test set. We train the same networks with a tenth of the training images held out for it, with the best instead of the last weights, and with the margin loss
# divided by its own number of images.

# %%
repairs = session.run(STEM, "repairs")
draws = session.run(STEM, "draws")

# %% [markdown]
# ```{fold} AUROC by rule, as far as it has run
# ```

# %% tags=["hide-input"]
of_repairs = frames.best([*committed, *repairs], "repairs")
measured = frames.metrics(of_repairs)
measured["arm"] = measured["stop_on"] + ", " + measured["keep"] + ", " + measured["divisor"]
columns = {f"auroc_{name}": NAMES[name] for name in SCORES if f"auroc_{name}" in measured}
display(
    Markdown(
        f"AUROC by what stops, what is kept and what divides. {frames.standing(of_repairs)}"
    )
)
frames.means(measured, "arm", columns, digits=3, bounds=(0, 1)).pipe(frames.styled)

# %% [markdown]
# ## Run it yourself
#
# ```shell
# capslib data fetch mnist fashion_mnist kmnist cifar10
# capslib run inequality_anomaly --scale cpu --experiment detection
# capslib run inequality_anomaly --scale paper --device cuda
# ```
#
# The fold below says what a network of the reduced grid takes on one core. A killed run continues from its last checkpoint. {doc}`/book/rerun` describes the rest and how to send a record.
#
# ```{fold} What the committed records took
# ```

# %% tags=["hide-input"]
baselines = session.run(STEM, "baselines")
frames.costs([*committed, *detection, *baselines]).pipe(frames.styled).hide(
    axis="index"
).format(precision=1)

# %% [markdown]
# ## Exercises
#
# ```{fold} Three exercises with solutions that run
# ```
#
# 1. One of $n$ children takes the whole coupling. What are its Gini coefficient and its Palma ratio?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Solution", "code_prompt_hide": "Solution"}
alone = torch.eye(288)[0]
pd.Series(
    {"Gini": float(gini(alone)), "(n − 1)/n": 287 / 288, "Palma": float(palma(alone))}
).round(4)

# %% [markdown]
# Both deciles are zero, and the code returns 1 by convention, as for equal shares: the Palma ratio does not see a single rich child.
#
# 2. The paper sums the couplings over the output dimension before it measures them. Show that this changes nothing.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Solution", "code_prompt_hide": "Solution"}
shares = dynamic_routing(agreeing[None], competition=OverChildren()).coupling[0, :, 0]
(
    float((gini(16 * shares) - gini(shares)).abs()),
    float((palma(16 * shares) - palma(shares)).abs()),
)

# %% [markdown]
# 3. Without the sorting of eq. 3, what does the formula measure? Shuffle the shares and see.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Solution", "code_prompt_hide": "Solution"}
rank = 2 * torch.arange(1, 17) - 17
with seeded(0):
    shuffled = [float((rank * shares[torch.randperm(16)]).sum() / 16) for _ in range(5)]
[round(value, 3) for value in (float(gini(shares)), *shuffled)]

# %% [markdown]
# ## All claims
#
# ```{fold} The paper's claims with their verdicts, reasons and runs
# ```
#
# ```{claims-table} inequality_anomaly
# ```
