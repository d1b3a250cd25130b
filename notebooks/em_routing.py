# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Matrix capsules with EM routing
#
# ```{masthead} em_routing
# ```
#
# :::{div} answer
# Not yet tested at full size. Small capsule networks with three iterations make more errors than a CNN of their size, but neither is right often enough in training to decide. Against the paper, no single free energy falls at every update.
# :::
#
# A capsule finds a thing and how it lies. Hinton, Sabour and Frosst (2018) route capsules by
# expectation maximisation. On smallNORB these err on {theirs}`EM-T1-iter3`; a convolutional
# network (CNN) with thirteen times the parameters errs on {theirs}`EM-T1-cnn`. At full size we
# trained only this CNN: {ours}`EM-T1-cnn`. Our {ref}`small capsule networks <reduced>`, with
# our rule of competition, err on {measured}`test_error:copy/main:test_error` with three
# iterations, on {measured}`test_error:copy/iterations_1:test_error` with one. A CNN of their
# size errs on {measured}`test_error:copy/small_cnn:test_error`. With dropout and crops on,
# three-iteration capsules and this CNN are right on fewer than nine of ten training images,
# so no order is decided. The paper's updates can go in a circle, so they cannot all lower one
# {term}`free energy`.
#
# ```{headlines} em_routing
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

# %% tags=["remove-cell"]
from capslib.lab.batch import Session

# Check the parameters before the first figure: a wrong one stops the run here.
session = Session.start(
    scale=scale,
    device=device,
    seeds=seeds,
    workers=workers,
    threads=threads,
    scheduler=scheduler,
    data_dir=data_dir,
    results_dir=results_dir,
)

# %% mystnb={"image": {"alt": "Test error on smallNORB of small networks with 48-pixel images: capsules {measured}`test_error:copy/main:test_error`, in the paper {theirs}`EM-T1-iter3`; a CNN of their size {measured}`test_error:copy/small_cnn:test_error`."}} tags=["remove-cell", "front"]
from capslib.lab import frames, plots
from capslib.lab.chapter import Chapter
from capslib.papers.em_routing import STEM

chapter = Chapter(STEM, results_dir)
verdicts = chapter.verdicts
CAPSULES = plots.routing_color("em")
CNN = plots.routing_color("cnn")


def runs(arm: str, scale: str = "cpu", experiment: str = "test_error") -> list:
    """Return the records of an arm: of small networks, unless another scale is named."""
    return frames.select(chapter.all_records, experiment, scale, arm=arm)


plots.use_style()
plots.dots(
    {
        "capsules, 3 iterations": (verdicts["EM-T1-iter3"], CAPSULES),
        "CNN of their size": (frames.values(runs("copy/small_cnn"), "test_error"), CNN),
    },
    "test error on smallNORB",
    end=30,
)

# %% tags=["hide-input"]
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import Ellipse
from torch.nn import functional as F

from capslib import data
from capslib.lab.ledger import plural, raised
from capslib.layers import ClassCapsules, ConvCapsules, MatrixPrimaryCapsules
from capslib.losses import spread_loss
from capslib.networks.em_routing import MatrixCapsNet
from capslib.papers.em_routing import EXPERIMENTS
from capslib.papers.em_routing.recipe import EMRecipe
from capslib.recipes import new_network
from capslib.routing import em_routing
from capslib.training import Examples, seeded

torch.set_num_threads(threads)  # small cells: more threads would wait for each other
plots.use_style()
INK, ROLES = plots.INK, plots.ROLE_COLORS
RULES = {  # who competes for a child: the normaliser, its name and its colour
    "types+positions": ("as printed", ROLES["printed"]),
    "types-per-position": ("one window only", ROLES["mistake"]),
    "positions-per-type": ("one type only", plots.ARM_COLORS[0]),
    "released": ("as released", ROLES["released"]),
}


def row(arm: str, color: str, claim: str = "", scale: str = "cpu") -> plots.Row:
    """Return a row of a figure: our errors seed by seed, and the paper's."""
    printed = verdicts[claim].claim.value if claim else None
    return plots.Row(color, frames.values(runs(arm, scale), "test_error"), printed)


def draw_errors(rows: dict[str, plots.Row]) -> plt.Axes:
    """Draw test errors, a row for each name, and say what the marks mean."""
    height = 0.75 + 0.25 * len(rows)
    _, axis = plots.panels(1, height=height)
    plots.errors(axis, rows)
    plots.key(axis, {"○ paper   ● ours   · one seed   ┊ chance": INK})
    return axis


# %% [markdown]
# ## The discovery
#
# {term}`Capsules <capsule>` of one layer, the *children*, vote for capsules of the next, the *parents*. In {term}`EM routing` parents compete for each child. In the paper, all parents that see the child compete.
# In the released code, parents of a convolutional layer compete only within a {term}`type`: the capsules that share weights. There a child that no parent explains {ref}`gives next to nothing <em-left-out>`.
# Our {ref}`small networks <em-settings>` follow *one type only*: there, too, parents compete
# within their type, but a child's {term}`couplings <coupling>` sum to one for each type.
#
# With three iterations and 48-pixel images, *one type only* makes fewer errors than either
# other rule, with each of three seeds. But {ref}`neither lead is decided <em-competition>`. We
# {doc}`chose this rule </book/rule_changes>` after networks with the paper's rule had hardly
# learned, so its lead over that rule is no surprise.

# %% mystnb={"figure": {"caption": "Under which rule of competition do networks err least? Small networks (48-pixel images), one to three iterations. With one iteration nothing competes, so *as released* and *one type only* are one network. *As printed* also divides the first couplings of a child by the number of windows that hold it.", "name": "fig-em-rules"}, "image": {"alt": "Test error under three rules of competition, three seeds each. With one iteration the rules are level. Every further iteration raises the error, under each rule and with each seed. With three, one type only errs on {measured}`test_error:copy/main:test_error`, as released on {measured}`test_error:copy/competition_as_released/iterations_3:test_error`, as printed on {measured}`test_error:copy/competition_as_printed/iterations_3:test_error`."}} tags=["hide-input"]
COMPETITION = (
    ("as printed", 1, "copy/competition_as_printed/iterations_1", "EM-T1-iter1"),
    ("as printed", 2, "copy/competition_as_printed/iterations_2", "EM-T1-iter2"),
    ("as printed", 3, "copy/competition_as_printed/iterations_3", "EM-T1-iter3"),
    ("as released", 2, "copy/competition_as_released/iterations_2", ""),
    ("as released", 3, "copy/competition_as_released/iterations_3", ""),
    ("one type only", 1, "copy/iterations_1", ""),
    ("one type only", 2, "copy/iterations_2", ""),
    ("one type only", 3, "copy/main", ""),
)
rule_colors = dict(RULES.values())
rows = {}
for rule, iterations, arm, claim in COMPETITION:
    rows[f"{rule}, {iterations}"] = row(arm, rule_colors[rule], claim)
axis = draw_errors(rows)
axis.set_ylabel("rule, iterations")
plt.show()

# %% [markdown]
# ## The idea on a toy
#
# A capsule has an *activation*, which says whether a thing is there, and a *pose*, which says how it lies. A child looks at its own pose and votes for the pose of the whole {cite:p}`hinton2018`.
#
# Here eighteen children vote for three parents in the plane. Seven agree about parent 1, seven others about parent 2. Each parent is a Gaussian.
# The *M-step* fits each parent to the children that belong to it. The *E-step* shares each child among the parents, by how well each explains its vote. That share is the *coupling*.

# %% mystnb={"figure": {"caption": "How do parents find their children? Votes for each parent (rows) by iteration (columns), coloured by the group of the child. Large dots belong to the parent; the ellipse reaches two standard deviations to each side.", "name": "fig-em-toy"}, "image": {"alt": "Votes for three parents over three iterations. Parents 1 and 2 shrink onto the children that agree about them and become active. Parent 3 loses the votes of both groups, stays wide, and is least active."}} tags=["hide-input"]
with seeded(4):
    groups = torch.tensor([0] * 7 + [1] * 7 + [2] * 4)
    votes = 1.1 * torch.randn(18, 3, 2)  # [I, J, D]
    centers = torch.tensor([[0.9, 0.6], [-0.8, 0.5]])
    for parent, center in enumerate(centers):
        cluster = center + 0.16 * torch.randn(7, 2)
        votes[groups == parent, parent] = cluster
colors = np.array([*plots.ARM_COLORS[1:3], INK])
group_colors = colors[groups]


def draw_parent(axis: plt.Axes, votes: torch.Tensor, coupling: torch.Tensor) -> None:
    """Draw the votes for a parent, and the Gaussian that it fits to them."""
    areas = 4 + 70 * coupling
    axis.scatter(*votes.T, s=areas, c=group_colors, alpha=0.75, lw=0)
    share = coupling[:, None] / coupling.sum()
    mean = (share * votes).sum(dim=0)
    variance = (share * (votes - mean).square()).sum(dim=0)
    width, height = 4 * variance.sqrt()
    ellipse = Ellipse(mean, width, height, fc="none", ec=INK, lw=1.5)
    axis.add_patch(ellipse)
    axis.set_xlim(-3, 3)
    axis.set_ylim(-2.7, 2.7)
    axis.set(xticks=[], yticks=[])
    axis.grid(False)


activation = torch.ones(18)
beta_u = torch.full((3,), 0.75)
beta_a = torch.zeros(3)
temperatures = [0.25, 0.5, 0.75]  # inverse, by iteration


def draw_toy(iterations: Sequence[int]) -> plt.Figure:
    """Draw the three parents (rows) after so many iterations (columns)."""
    figure, axes = plots.panels(
        len(iterations), rows=3, height=1.15, sharex=True, sharey=True
    )
    for t, column in zip(iterations, axes.T, strict=True):
        options = dict(inverse_temperature=temperatures[:t], variance_offset=5e-4)
        routed = em_routing(votes, activation, beta_u, beta_a, iterations=t, **options)
        for parent, axis in enumerate(column):
            draw_parent(axis, votes[:, parent], routed.coupling[:, parent])
            strength = f"$a_{parent + 1}$ = {routed.activation[parent]:.2f}"
            axis.set_title(f"t = {t}, {strength}", fontsize=10)
    for parent, axis in enumerate(axes[:, 0], start=1):
        axis.set_ylabel(f"parent {parent}", fontsize=9.5)
    return figure


def draw_toy_on_a_phone() -> plt.Figure:
    """Draw the first and the last iteration, which fit."""
    figure = draw_toy([1, 3])
    figure.set_size_inches(plots.PHONE, 4.2)
    return figure


figure = draw_toy([1, 2, 3])
figure.narrow = draw_toy_on_a_phone
plt.show()

# %% [markdown]
# Each iteration sharpens the couplings. But in trained networks the third can {ref}`hand close votes to wrong classes <em-votes>`.
# A parent becomes active when describing its votes costs less than a threshold, $\beta_a$. A parent without votes costs nothing; where $\beta_a = 0$, as here, its activation is one half. Parent 3 keeps few votes, so its activation is near one half, too.
#
# ## The method
#
# ### The network

# %% mystnb={"figure": {"caption": "Which layers route? The paper's main network on a stereo pair: grid, and number of filters or of capsule types (orange). Above each arrow: the window and its stride. Layers from capsules to capsules route by EM, in three iterations.", "name": "fig-em-network"}, "image": {"alt": "The network of matrix capsules from left to right: image, convolution, primary capsules, two convolutional layers of capsules, class capsules. Each has its grid and its number of capsule types. Three layers route."}} tags=["hide-input"]
network = MatrixCapsNet((2, 32, 32))
pair = torch.zeros(1, 2, 32, 32)
with torch.no_grad():
    filters, *grid = network.conv(pair).shape[1:]
    _, primary = network.primary_capsules(pair)
    routed_layers = network.layers(pair).values()
sizes = [(32, 32, 2), (*grid, filters), primary.shape[1:]]
for layer in routed_layers:
    sizes.append(layer.activation.shape[1:])
names = [
    "image",
    "feature maps",
    "primary capsules",
    "capsules",
    "capsules",
    "class capsules",
]
windows = [
    f"{kernel}×{kernel}, stride {stride}" for kernel, stride in MatrixCapsNet.WINDOWS
]
shapes = [" × ".join(map(str, size)) for size in sizes]
operations = [*windows, "whole grid", ""]
layers = list(zip(names, shapes, operations, strict=True))
plots.network(layers, CAPSULES)
plt.show()

# %% [markdown]
# These cells build the network with fewer capsule types, and train it for one step. Parents
# compete as printed; our small networks pass `normalise="positions-per-type"`.


# %%
class SmallMatrixCapsNet(torch.nn.Module):
    """The network above, with eight capsule types and without coordinate addition."""

    def __init__(self, classes: int = 5):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 32, 5, stride=2)
        self.primary = MatrixPrimaryCapsules(32, 8)
        self.capsules1 = ConvCapsules(8, 8, kernel=3, stride=2, iterations=3)
        self.capsules2 = ConvCapsules(8, 8, kernel=3, stride=1, iterations=3)
        self.classes = ClassCapsules(8, classes, iterations=3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pose, activation = self.primary(self.conv(images).relu())
        for layer in (self.capsules1, self.capsules2, self.classes):
            pose, activation, _ = layer(pose, activation)
        return activation  # [N, classes]


# %%
toys = data.load("toys", "train")
chosen = slice(None, None, len(toys) // 16)
images = torch.tensor(toys.images[chosen]).float()
images = F.interpolate(images, size=32)
images = (images - images.mean()) / images.std()
labels = torch.tensor(toys.labels[chosen])
with seeded(0):
    network = SmallMatrixCapsNet()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
loss = spread_loss(network(images), labels, margin=0.2)
loss.backward()
optimizer.step()
lowered = spread_loss(network(images), labels, margin=0.2)
frames.say(f"Spread loss: {loss:.3f} before the step, {lowered:.3f} after it.")

# %% [markdown]
# ### Votes
#
# A child has a pose $\mathbf u_i$, a 4×4 matrix, and an activation $a_i$. Its vote is $\hat{\mathbf u}_{j|i} = \mathbf u_i \mathbf W_{ij}$ with a learned matrix $\mathbf W_{ij}$.
# The pose stands on the left, so a new viewpoint $\mathbf g$ multiplies every vote: votes that agree still agree, without new weights.
# Layers between grids share $\mathbf W$ over all positions. The class capsules add to each vote the position of its child ({term}`coordinate addition`).
#
# ```{fold} The layer that casts the votes and routes them
# ```
#
# ```{live-source} capslib.layers.ConvCapsules
# :given: transform="linear" coordinates=False
# :test: tests/routing/test_competition.py::test_it_is_what_loops_over_all_positions_say
# ```
#
# ### EM routing
#
# From here on a vote is its sixteen numbers, $\hat u^h_{j|i}$. All couplings $c_{ij}$ of a child start equal. The M-step, with the mass $m_j = \sum_i c_{ij} a_i$ of a parent's votes, is
#
# ```{math}
# :label: eq-m-step
# \begin{aligned}
# \mu_j^h &= \frac{1}{m_j} \sum_i c_{ij} a_i\, \hat u_{j|i}^h, \\
# (\sigma_j^h)^2 &= \frac{1}{m_j} \sum_i c_{ij} a_i\, (\hat u_{j|i}^h - \mu_j^h)^2, \\
# \mathrm{cost}_j^h &= (\beta_u + \ln \sigma_j^h)\, m_j, \\
# a_j &= \operatorname{logistic}\Bigl(\lambda \bigl(\beta_a - \textstyle\sum_h \mathrm{cost}_j^h\bigr)\Bigr),
# \end{aligned}
# ```
#
# and the E-step
#
# ```{math}
# :label: eq-e-step
# \begin{aligned}
# c_{ij} &= \frac{a_j\, p_{ij}}{\sum_k a_k\, p_{ik}}, \\
# p_{ij} &= \prod_h \frac{1}{\sqrt{2\pi}\, \sigma_j^h} \exp\Bigl(-\frac{(\hat u_{j|i}^h - \mu_j^h)^2}{2 (\sigma_j^h)^2}\Bigr) .
# \end{aligned}
# ```
#
# ```{live-source} capslib.routing.em.em_routing
# :given: bias=None vector=False length_offset=1e-8 spread="deviation"
# :test: tests/routing/conformance.py::it_is_what_the_plain_loops_say, tests/routing/test_em.py::test_one_e_step_worked_by_hand
# ```
#
# $\beta_u$ is a learned cost for each unit of mass, $\beta_a$ the learned threshold. The inverse temperature, as released $\lambda_t = \lambda\,(1 - 0.95^t)$, sharpens that threshold from iteration to iteration.
# The sum over $k$ runs over *all* parents that see the child: every type, at every position whose window contains it.
#
# ```{fold} The lines that find those parents
# ```
#
# ```{live-source} capslib.routing.competition.Competition
# :test: tests/routing/test_competition.py::test_a_child_shares_itself_out_among_all_parents_that_see_it
# ```
#
# ### Spread loss
#
# Every wrong class $k$ should stay a margin $m$ below the right one $y$: $L = \sum_{k \ne y} \max(0, m - (a_y - a_k))^2$.
# In the paper the margin grows linearly from 0.2 to 0.9. In the release, and here, it grows along a logistic curve from 0.21 to 0.98.
#
# ```{fold} The lines that compute it
# ```
#
# ```{live-source} capslib.losses.spread_loss
# :test: tests/test_losses.py::test_spread_loss_is_its_loops
# ```
#
# (em-left-out)=
# ### Where the released code departs from the paper
#
# The released code {cite:p}`hinton2018code` departs from the text; in the first two rows below, in its convolutional layers only. In these two rows our full-size capsule networks, which wait for a GPU, will follow the code.
#
# | | paper | released code | our small networks |
# |---|---|---|---|
# | Who competes for a child? | all parents that see it | [parents of one type](https://github.com/google-research/google-research/blob/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em/em_layers.py#L123-L145), at all positions | the same |
# | What if no parent explains a child? | it still gives one unit | it gives next to nothing: the code subtracts [one maximum](https://github.com/google-research/google-research/blob/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em/em_layers.py#L111-L122) over the whole image for each pair of child type and parent type, then [adds 10⁻⁷ to each sum](https://github.com/google-research/google-research/blob/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em/em_layers.py#L143-L144) | one unit to each type |
# | Is there a floor for variances? | not stated | [5·10⁻⁴ is added](https://github.com/google-research/google-research/blob/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em/em_layers.py#L92) | as released |
# | Does the mean keep part of its last value? | no | [a tenth](https://github.com/google-research/google-research/blob/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em/em_layers.py#L83-L89) | no |
# | Where do β and λ start? | not stated | constants for each layer | set on 16 images so that every capsule starts about half active; the authors' aim was half of the capsules |
#
# ```{fold} Six more questions that the text leaves open, and our answers
# ```
#
# | question | answer |
# |---|---|
# | Who competes where windows have stride two? | The index arithmetic of the release is exact for stride one only; in the first capsule layer it groups the wrong positions. `normalise="released"` does the same (`test_the_released_sums_are_those_of_its_index_arithmetic`). |
# | One β for all capsules or one for each? | §2 and §3 disagree. We take one for each type, as the code does. |
# | Standard deviations of the first weights | From the release: 0.5 for primary poses, 3 for activations. Its reshape gives most activations the weights of poses; ours get their own. |
# | Scale of the coordinates | As released: pixels, numbered from −H/2 to H/2 − 1, divided by 100. |
# | Optimiser and schedules | From the authors' answers on the review forum: Adam at 3·10⁻³, logistic margin. We stretch the schedules of rate and margin to our number of steps. |
# | Vector poses | Sixteen numbers and a 16×16 matrix for each pair, as in Sabour et al. {cite:p}`sabour2017`: sixteen times the weights of a matrix pose. |
#
# ## The data
#
# smallNORB {cite:p}`lecun2004` has stereo pairs of fifty toys from 18 azimuths and 9 elevations, under 6 lightings; the toys of the test set are new.
# Our runs saw all its pairs, in a copy compressed as JPEG. The set is free for research only, so this page draws our own stand-in, {doc}`toys </book/data>`.

# %% mystnb={"figure": {"caption": "What does a network see of a toy? One toy of each category of the stand-in: left and right camera, two turns, the highest elevation, and another lighting.", "name": "fig-em-toys"}, "image": {"alt": "A sheet of rendered grey toys in five rows: animal, human, airplane, truck and car. The first two columns are a stereo pair, and the next two turn the toy. The last two show it from above and under another lighting."}} tags=["hide-input"]
FRONT = dict(camera=0, elevation=2, azimuth=4, lighting=3)
VIEWS = {  # what differs from the front view
    "left": {},
    "right": {"camera": 1},
    "+120°": {"azimuth": 16},
    "+240°": {"azimuth": 28},
    "above": {"elevation": 8},
    "light": {"lighting": 1},
}


def picture(label: int, camera: int, **factors: int) -> np.ndarray:
    """Return the image of a toy of a category by one camera, [H, W]."""
    match = (toys.labels == label) & (toys["instance"] == 6)
    for factor, value in factors.items():
        match &= toys[factor] == value
    return toys.images[match][0, camera]


figure, axes = plots.panels(len(VIEWS), rows=5, height=1.2)
for column, (title, changes) in enumerate(VIEWS.items()):
    view = FRONT | changes
    axes[0, column].set_title(title, fontsize=9.5)
    for label, axis in enumerate(axes[:, column]):
        axis.imshow(picture(label, **view), cmap="gray", vmin=0, vmax=255)
        axis.set(xticks=[], yticks=[], frame_on=False)
for axis, name in zip(axes[:, 0], toys.classes, strict=True):
    axis.set_ylabel(name, fontsize=9.5)
plots.show_pixels(figure)

# %% [markdown]
# ## Experiments
#
# (em-settings)=
# ### Two kinds of small networks
#
# {ref}`Small networks <reduced>` have eight capsule types a layer instead of 32, and 25,098 parameters instead of 316,650. They train on all 24,300 pairs, with three seeds. The size of the images names the two kinds.
#
# | | paper | small networks (48-pixel images) | small networks (32-pixel images) |
# |---|---|---|---|
# | images | 48 × 48 | 48 × 48 | 32 × 32 |
# | crops that the network sees | 32 × 32 | 32 × 32 | 24 × 24 |
# | last grid of capsules | 4 × 4 | 4 × 4 | 2 × 2 |
# | epochs, batch | epochs not stated, 64 | 24, 64 | 12, 32 (viewpoints: 16 epochs) |
# | brightness and contrast | vary | vary | hardly vary |
# | what they answer | | iterations, capsules against CNN, votes, who competes | other rows of Table 1, viewpoints, attacks |
#
# So compare the errors of one kind only. An order is decided only if both networks are right on nine of ten training images, and a run of twice the length agrees.
#
# We count right answers during training, while crops, brightness and contrast vary and the
# CNN drops half its hidden units. So the training error can exceed the test error.

# %% tags=["remove-cell"]
test_error = session.run(STEM, "test_error")

# %% [markdown]
# ### What does each part of the design add? (Table 1)
#
# Most cells have the paper's error, and below it ours: the mean of three seeds on 24,300 test pairs. Where a network broke down, its seeds are listed. The squares lead to interval and verdict. Compare the other rows of 32-pixel networks with the row *3, as reference*.

# %% tags=["hide-input"]
SMALL_32, SMALL_48 = "small, 32 pixels", "small, 48 pixels"
errors = frames.values(runs("main"), "test_error")
reference = f"ours {np.mean(errors):.1f}" if errors else frames.MISSING
quoted = verdicts["EM-T1-ciresan"].claim.printed
rows = (
    ("1", "matrix", "spread", "yes", "EM-T1-iter1", SMALL_48),
    ("2", "matrix", "spread", "yes", "EM-T1-iter2", SMALL_48),
    ("3", "matrix", "spread", "yes", "EM-T1-iter3", SMALL_48),
    ("3, as reference", "matrix", "spread", "yes", reference, SMALL_32),
    ("5", "matrix", "spread", "yes", "EM-T1-iter5", SMALL_32),
    ("3", "vector", "spread", "yes", "EM-T1-vector", SMALL_32),
    ("3", "matrix", "spread", "no", "EM-T1-nocoord", SMALL_32),
    ("3", "vector", "spread", "no", "EM-T1-vector-nocoord", SMALL_32),
    ("3", "matrix", "margin", "yes", "EM-T1-margin", SMALL_32),
    ("3", "matrix", "cross entropy", "yes", "EM-T1-crossent", SMALL_32),
    ("baseline CNN", "–", "cross entropy", "–", "EM-T1-cnn", SMALL_48),
    ("CNN of Ciresan et al.", "–", "–", "–", quoted, "quoted"),
    ("3, several crops", "matrix", "spread", "yes", "EM-T1-best", SMALL_48),
)
columns = ["iterations", "pose", "loss", "coordinates", "test error (%)", "our network"]
table = pd.DataFrame(rows, columns=columns)
full_size = [claim for claim in verdicts if verdicts[claim].scale == "paper"]
is_full_size = table["test error (%)"].isin(full_size)
table.loc[is_full_size, "our network"] = "full size"
chapter.side_by_side(table, digits=1)

# %% [markdown]
# **How many iterations, and capsules or CNN?** In the paper three iterations are best. In small networks (48-pixel images) one makes the fewest errors and three the most, with every seed. The CNN of their size and the paper's larger CNN, trained for as many steps, make fewer still on average ({numref}`fig-em-copy`).
# But neither order is decided <span id="at-EM-W-10">{claim}`EM-W-10`</span>
# <span id="at-EM-W-14">{claim}`EM-W-14`</span>: capsules with two or three iterations and
# the CNN of their size are right on fewer than nine of ten training images. An independent
# implementation makes the most errors with one iteration and the fewest with two
# {cite:p}`gritzman2019`.
#
# Capsules are still learning. With the first seed, the only one trained for longer, twice the
# training lowers the error of three iterations by {measured}`test_error:copy/main - copy/main/twice:test_error` to
# {measured}`test_error:copy/main/twice:test_error`. It lowers that of one iteration by
# {measured}`test_error:copy/iterations_1 - copy/iterations_1/twice:test_error` to
# {measured}`test_error:copy/iterations_1/twice:test_error`, and that of the CNN of their
# size by {measured}`test_error:copy/small_cnn - copy/small_cnn/twice:test_error` to
# {measured}`test_error:copy/small_cnn/twice:test_error`. So one iteration then errs less
# than this CNN, but one iteration routes nothing. From 24 to 48 epochs the paper's CNN
# gains nothing: its error rises by
# {measured}`test_error:copy/cnn/twice - copy/cnn:test_error` to
# {measured}`test_error:copy/cnn/twice:test_error`.

# %% mystnb={"figure": {"caption": "How many iterations are best, and do capsules beat a CNN? Test error of small networks (48-pixel images) and of the paper's CNN after 24 and (last row) 100 epochs. Capsules follow *one type only*. Cross: the first seed, joined to its dot, trained for twice as long.", "name": "fig-em-copy"}, "image": {"alt": "Test error for one, two and three iterations, and of CNNs. In the paper three iterations give the fewest errors. Here three err on {measured}`test_error:copy/main:test_error`, two on {measured}`test_error:copy/iterations_2:test_error`, one on {measured}`test_error:copy/iterations_1:test_error`, and both CNNs on fewer. After twice the training capsules with one iteration make fewer errors than the CNN of their size."}} tags=["hide-input"]
NETWORKS = (
    ("1 iteration", "copy/iterations_1", "EM-T1-iter1"),
    ("2 iterations", "copy/iterations_2", "EM-T1-iter2"),
    ("3 iterations", "copy/main", "EM-T1-iter3"),
    ("CNN of the same size", "copy/small_cnn", ""),
    ("CNN of the paper", "copy/cnn", "EM-T1-cnn"),
)
rows, longer = {}, []
for name, arm, claim in NETWORKS:
    color = CNN if "CNN" in name else CAPSULES
    rows[name] = row(arm, color, claim)
    longer.append((runs(arm), runs(f"{arm}/twice")))
rows["the same, at full size"] = row("cnn", CNN, "EM-T1-cnn", "paper")
longer.append((runs("cnn", "paper"), runs("cnn/twice", "paper")))
axis = draw_errors(rows)
for y, (once, twice) in enumerate(longer):
    for record in twice:
        same = [other for other in once if other.trial.seed == record.trial.seed]
        joined = frames.values([*same, record], "test_error")
        axis.plot(joined, [y] * len(joined), color=INK, lw=1)
        axis.plot(joined[-1:], [y], "x", color=INK, ms=7)
plt.show()


# %% mystnb={"figure": {"caption": "Have they finished learning? Small networks (48-pixel images), three seeds each: training error (the CNN's with dropout), and error on 5,000 test images. Dotted: one error in ten. Only networks whose thin line ends below it decide an order.", "name": "fig-em-learning"}, "image": {"alt": "Training and test error over the epochs, of capsules with one and with three iterations and of the CNN of their size. Capsules with three iterations stay above one error in ten training images; those with one fall below it."}} tags=["hide-input"]
def draw_learning(axis: plt.Axes, record: object, color: str) -> None:
    """Draw the errors of a training over its epochs: of its batches, and of test images."""
    series = record.series
    steps, epochs = np.array(series["steps"]), series["epochs"]
    errors = 100 * (1 - np.array(series["batch_accuracy"]))
    times = steps * epochs[-1] / steps[-1]
    axis.plot(times, errors, color=color, alpha=0.4, lw=0.8)
    axis.plot(epochs, series["error_of_some"], color=color, lw=1.5)


LEARNERS = (
    ("3 iterations", "copy/main"),
    ("1 iteration", "copy/iterations_1"),
    ("CNN of the same size", "copy/small_cnn"),
)
figure, axes = plots.panels(3, height=2.1, sharey=True)
for axis, (name, arm) in zip(axes, LEARNERS, strict=True):
    color = CNN if "CNN" in name else CAPSULES
    for record in runs(arm):
        draw_learning(axis, record, color)
    axis.axhline(10, color=INK, lw=1, ls=":")
    axis.set_title(name)
    axis.set_xlabel("epoch")
    axis.set_ylim(0, 60)
axes[0].set_ylabel("error (%)")
plots.key(axes[0], {"thin: training": INK, "thick: test": INK}, "upper right")
plt.show()

# %% [markdown]
# **And the CNN at full size?** After 100 epochs it errs on {ours}`EM-T1-cnn`, above the
# paper's {theirs}`EM-T1-cnn`. After 200 epochs the first seed errs on
# {measured}`test_error@paper:cnn/twice:test_error`. The paper does not say how long it
# trains, so this value stays open {claim}`EM-T1-cnn`.
#
# **Pose, coordinates and loss.** These networks see 32-pixel images ({numref}`fig-em-table1`). Their main network, with three iterations, errs on {measured}`test_error:main:test_error`. None of these orders is decided.
#
# * *Loss*: cross entropy errs most, as in the paper <span id="at-EM-W-11">{claim}`EM-W-11`</span>.
# * *Pose*: with coordinates, vectors err less than matrices with every seed, at twelve
#   times the parameters <span id="at-EM-W-13">{claim}`EM-W-13`</span>. Without coordinates,
#   two of three vector networks stay at chance.
# * *Coordinates*: matrix networks without them err less with every seed. On a last grid of
#   2 × 2 places this decides nothing, and we have trained no 48-pixel network without them
#   <span id="at-EM-W-12">{claim}`EM-W-12`</span>.
# * *Margin*: §4.1 says that a margin that grows leaves fewer capsules dead. A type is
#   *dead* if no image makes it more active than 0.05. On 500 test images no type is dead
#   under either margin, so the two cannot be told apart
#   <span id="at-EM-W-6">{claim}`EM-W-6`</span>. With a fixed margin the network errs on
#   {measured}`test_error:fixed_margin:test_error`, and is right on fewer than nine of ten
#   training images.
# * *Activation*: three seeds do not separate the paper's activation from mixing proportions, the shares of children that parents take <span id="at-EM-W-15">{claim}`EM-W-15`</span>.

# %% mystnb={"figure": {"caption": "Which part of the design lowers the test error? Small networks (32-pixel images): every row of Table 1, and the mixing proportions of section 5.", "name": "fig-em-table1"}, "image": {"alt": "Test error of every row of Table 1 on a logarithmic axis. In the paper three iterations give the lowest error, {theirs}`EM-T1-iter3`, and one the highest, {theirs}`EM-T1-iter1`. Here one gives {measured}`test_error:iterations_1:test_error`, three give {measured}`test_error:main:test_error` and five {measured}`test_error:iterations_5:test_error`. With three, vector poses give {measured}`test_error:vector_pose:test_error`, and cross entropy gives {measured}`test_error:cross_entropy:test_error`."}} tags=["hide-input"]
ABLATIONS = (
    ("main network", "main", "EM-T1-iter3"),
    ("1 iteration", "iterations_1", "EM-T1-iter1"),
    ("2 iterations", "iterations_2", "EM-T1-iter2"),
    ("5 iterations", "iterations_5", "EM-T1-iter5"),
    ("vector pose", "vector_pose", "EM-T1-vector"),
    ("no coordinates", "no_coordinates", "EM-T1-nocoord"),
    ("vector, no coordinates", "vector_pose_no_coordinates", "EM-T1-vector-nocoord"),
    ("margin loss", "margin_loss", "EM-T1-margin"),
    ("cross entropy", "cross_entropy", "EM-T1-crossent"),
    ("mixing proportions", "mixing_proportions", "EM-X-mixing"),
    ("CNN of the same size", "cnn", "EM-T1-cnn"),
)
rows = {}
for name, arm, claim in ABLATIONS:
    color = CNN if arm == "cnn" else CAPSULES
    rows[name] = row(arm, color, claim)
draw_errors(rows)
plt.show()

# %% [markdown]
# ### Other crops, other data, and how many parameters? (§5)
#
# Averaging 13 crops of a test image lowers the error of small networks (48-pixel images) with every seed, by {measured}`test_error:copy/main:multi_crop_gain`. CIFAR-10 {cite:p}`krizhevsky2009` waits for a GPU.
# Our counts of parameters match the printed ones if the paper rounds down. It gives the CNN {theirs}`EM-X-param-ratio-cnn` times the parameters of capsules; its own counts, {theirs}`EM-X-params-cnn` and {theirs}`EM-X-params-main`, give 13.5, ours {measured}`sizes@paper:cnn:times_main`.
#
# ```{fold} The numbers of section 5 and the counts of parameters
# ```

# %% tags=["remove-cell"]
sizes = session.run(STEM, "sizes")

# %% tags=["hide-input"]
names = {
    "EM-W-17": "Errors: several crops < the centre crop",
    "EM-X-multi-crop": "Error with several crops",
    "EM-X-reduction": "Fewer errors than the best network before (negative: more errors)",
    "EM-X-mixing": "Error with mixing proportions as activations",
    "EM-X-mnist": "Error on MNIST (ours: a small network, four epochs)",
    "EM-X-cifar10": "Error on CIFAR-10",
    "EM-X-small-68k": "Error of the paper's small network",
    "EM-X-params-main": "Parameters of the main network",
    "EM-X-params-small": "Parameters of the paper's small network",
    "EM-X-params-cnn": "Parameters of the CNN",
    "EM-X-param-ratio-cnn": "Parameters of the CNN over those of capsules",
    "EM-W-7": "Stored: the 4×4 matrices and two biases a capsule type",
}
chapter.table(*names, names=names)

# %% [markdown]
# ### Viewpoints that were never seen (Table 2)
#
# Are capsules better at new viewpoints, or at everything? Networks train on six of 18 azimuths, or on the three lowest of nine elevations. The paper stops its capsules where their error on these *familiar* viewpoints equals the CNN's.
#
# Our networks are small (32-pixel images), and here the CNN errs less on familiar views.
# The table gives both at the end of their training. {numref}`fig-em-table2` takes the CNN
# earlier, where it makes as many familiar errors as the capsules: after about one to three
# of its 16 epochs, interpolated.

# %% tags=["remove-cell"]
viewpoint = session.run(STEM, "viewpoint")

# %% tags=["hide-input"]
columns = ["azimuth, CNN", "azimuth, capsules", "elevation, CNN", "elevation, capsules"]
cells = {}
for view in ("novel", "familiar"):
    pairs = product(("azi", "ele"), ("cnn", "caps"))
    cells[view] = [f"EM-T2-{factor}-{view}-{network}" for factor, network in pairs]
table = pd.DataFrame(cells, columns).T.rename_axis("viewpoints: test error (%)")
chapter.side_by_side(table, digits=1)

# %% mystnb={"figure": {"caption": "Which network makes fewer errors on novel viewpoints, when both make equally many on familiar ones? Small networks (32-pixel images): CNN (brown) and capsules (orange).", "name": "fig-em-table2"}, "image": {"alt": "Test error of CNN and capsules on familiar and novel azimuths and elevations. In the paper both are equal on familiar views, and capsules err less on novel ones: {theirs}`EM-T2-azi-novel-caps` against {theirs}`EM-T2-azi-novel-cnn` on azimuths. Here capsules err on {measured}`viewpoint:azimuth/capsules_and_cnn:capsules_novel`, the CNN on {measured}`viewpoint:azimuth/capsules_and_cnn:cnn_novel`."}} tags=["hide-input"]
MATCHED = (("CNN", "cnn", "cnn", CNN), ("capsules", "capsules", "caps", CAPSULES))
rows = {}
for factor, view in product(("azimuth", "elevation"), ("familiar", "novel")):
    matched = runs(f"{factor}/capsules_and_cnn", experiment="viewpoint")
    for name, network, suffix, color in MATCHED:
        claim = f"EM-T2-{factor[:3]}-{view}-{suffix}"
        errors = frames.values(matched, f"{network}_{view}")
        printed = verdicts[claim].claim.value
        rows[f"{view} {factor}, {name}"] = plots.Row(color, errors, printed)
draw_errors(rows)
plt.show()

# %% [markdown]
# Matched, our capsules make more errors on novel views than the CNN, with every seed; the paper's make about {theirs}`EM-X-viewpoint-reduction-azi` fewer.
# But ours are matched at {measured}`viewpoint:azimuth/capsules_and_cnn:capsules_familiar` and {measured}`viewpoint:elevation/capsules_and_cnn:capsules_familiar`. We ask for a match below eight per cent, about twice the paper's familiar error, so the order stays undecided <span id="at-EM-W-16">{claim}`EM-W-16`</span>.
#
# (em-votes)=
# ### Do votes find each other? (Figures 2 and B.2)
#
# In the paper, after the second and the third iteration, almost all votes close to the mean of a class belong to the right class. In small networks (48-pixel images) the second iteration gathers them.
# The right class then has {measured}`test_error:copy/main:right_share_of_close_2` of the
# close votes; a class chosen blindly has a fifth. After the third iteration it has
# {measured}`test_error:copy/main:right_share_of_close` on average, but less than a fifth
# with two of three seeds. With the first seed, twice the training widens this
# contrast: {measured}`test_error:copy/main/twice:right_share_of_close_2` after the second
# iteration and {measured}`test_error:copy/main/twice:right_share_of_close` after the third.
# Most images are still classified correctly; we have not tested why. How far apart votes
# lie may depend on the number of types, so we judge this claim at full size only
# {claim}`EM-W-1`.

# %% mystnb={"figure": {"caption": "Do votes gather at the right class? Mass of a class by the Euclidean distance of a vote from the class's mean. Small networks (48-pixel images), mean of three seeds. *Wrong*: the mean of the four wrong classes. Dotted: what the paper calls close. Numbers: total mass.", "name": "fig-em-votes"}, "image": {"alt": "Three panels, one for each iteration: how much mass a class has at each distance from its mean, for right and for wrong classes. At first both have as much. After the second iteration the right class has far more, and {measured}`test_error:copy/main:right_share_of_close_2` of the close votes. After the third it has hardly more of the close votes than a wrong class, and less mass in all."}} tags=["hide-input"]
vote_series = [record.series for record in runs("copy/main")]
edges = 0.01 * np.arange(41)
figure, axes = plots.panels(3, height=1.9, sharey=True)
for t, axis in enumerate(axes, start=1):
    totals = {}
    for kind, color in (("right", CAPSULES), ("wrong", INK)):
        curves = [series[f"votes_{kind}_{t}"] for series in vote_series]
        masses = np.mean(curves or [np.zeros(40)], axis=0)
        axis.stairs(masses, edges, color=color, lw=1.6)
        totals[f"{kind}: {masses.sum():.0f}"] = color
    plots.key(axis, totals, inside="upper right")
    axis.axvline(0.05, color=INK, lw=1, ls=":")
    axis.set_title(f"iteration {t}")
    axis.set_xlabel("distance from mean")
    axis.set_xlim(0, 0.16)
    axis.locator_params(axis="x", nbins=3)
axes[0].set_ylabel("mass, in children")
plt.show()

# %% [markdown]
# ### Attacks (Figure 3, §6)
#
# Are capsules harder to fool? The fast gradient sign method (FGSM) moves every pixel by ε
# so that the loss of the right class rises. When *targeted*, it makes the loss of another
# class fall. The basic iterative method takes several small steps. A black-box attack
# follows the gradient of another network, here of a second CNN, the same but for its seed.
# In the paper FGSM and the iterative method harm the CNN much more, and gradients of
# capsules are {theirs}`EM-X-adv-gradorders` orders of magnitude smaller. Those of our
# capsules are {ours}`EM-X-adv-gradorders` orders of magnitude smaller
# <span id="at-EM-X-adv-gradorders">{claim}`EM-X-adv-gradorders`</span>. All our attacks but
# one follow the cross entropy.

# %% tags=["remove-cell"]
attacks = session.run(STEM, "attacks")

# %% mystnb={"figure": {"caption": "Do capsules resist better? Accuracy of capsules minus that of the CNN (targeted: targets missed), over the step in standard deviations. Small networks (32-pixel images), 500 images, three faint seeds and their mean. Dotted: a lead of ten points (much) or of five (noticeably); we chose these bounds, and the two steps at which we judge, after the first records.", "name": "fig-em-attacks"}, "image": {"alt": "Lead of capsules over the CNN in points, for four attacks. At small steps the CNN is ahead under every attack. At a step of 0.2 capsules are ahead on average under each. Their lead is largest on images of another CNN, and there it passes the lower bound. At the largest step the CNN is ahead again, most under targeted FGSM. Under no white-box attack the mean lead of capsules reaches the upper bound."}} tags=["hide-input"]
ATTACKS = (
    ("fgsm", "FGSM"),
    ("targeted", "targeted FGSM"),
    ("bim", "basic iterative method"),
    ("transfer", "images of another CNN"),
)


def lead(record: object, attack: str) -> np.ndarray:
    """Return the lead of capsules over the CNN at each step, in points."""
    capsules = np.array(record.series[f"{attack}_capsules"])
    cnn = np.array(record.series[f"{attack}_cnn"])
    points = 100 * (capsules - cnn)
    return -points if attack == "targeted" else points  # there a hit is an error


def draw_bound(axis: plt.Axes, points: float, word: str) -> None:
    """Draw the lead that a word of the paper asks for."""
    axis.axhline(points, color=INK, lw=1, ls=":")
    axis.text(-0.02, points, f"“{word}”", fontsize=9, va="bottom")


attacked = runs("capsules_and_cnn", experiment="attacks")
figure, axes = plots.panels(2, rows=2, height=1.7, sharex=True, sharey=True)
for axis, (attack, title) in zip(axes.flat, ATTACKS, strict=True):
    leads = [lead(record, attack) for record in attacked]
    epsilons = attacked[0].series["epsilons"] if attacked else []
    for points in leads:
        axis.plot(epsilons, points, color=CAPSULES, lw=1, alpha=0.4)
    if leads:
        axis.plot(epsilons, np.mean(leads, axis=0), "o-", color=CAPSULES, ms=4)
    axis.axhline(0, color=CNN, lw=1.5)
    if attack == "transfer":
        draw_bound(axis, 5, "noticeably")
    else:
        draw_bound(axis, 10, "much")
    axis.set_title(title)
    axis.set_ylim(-20, 17)
axes[0, 0].text(0.5, -19, "below: the CNN is ahead", fontsize=9, ha="right", color=CNN)
plt.setp(axes[1], xlabel="step ε")
plt.setp(axes[:, 0], ylabel="lead (points)")
plt.show()

# %% [markdown]
# Under each attack the CNN leads on average at small steps and at ε = 0.5. On average capsules
# lead at ε = 0.2, but never *much* where the attack knows the weights.
#
# Without an attack the CNN makes fewer errors. So we compare two numbers, at ε = 0.1 (Figure
# B.3) and 0.2 (§6): the accuracy under attack, and the share of the clean accuracy that is
# left.
#
# * *FGSM* <span id="at-EM-W-2">{claim}`EM-W-2`</span> and *the basic iterative method*
#   <span id="at-EM-W-3">{claim}`EM-W-3`</span>: three seeds decide nothing. Under the
#   iterative method, capsules keep the larger share with every seed.
# * *Images of another CNN* <span id="at-EM-W-5">{claim}`EM-W-5`</span>: the paper sees no
#   noticeable lead of capsules. Ours keep a larger share with every seed, which points the
#   other way, but three seeds decide nothing.
# * *Gradients that are exactly zero*: capsules should have fewer. Neither of our networks has any, so the claim cannot be tested <span id="at-EM-W-4">{claim}`EM-W-4`</span>.
#
# FGSM never took the paper's capsules below chance, one fifth. For this claim the attack
# follows the spread loss with margin 0.9. The accuracy of our small capsules then falls to
# {ours}`EM-X-adv-chance` on average; the seeds differ too much to decide
# <span id="at-EM-X-adv-chance">{claim}`EM-X-adv-chance`</span>. Under the cross entropy it
# falls to {measured}`attacks:capsules_and_cnn:least_fgsm_accuracy`. After twice the training
# the first seed stays just above chance under the spread loss, and falls to
# {measured}`attacks:capsules_and_cnn/twice:least_fgsm_accuracy` under the cross entropy.
#
# At ε = 0.2 the paper's CNN is clearly below chance; the unit of ε is not given. With ε in standard deviations, our small CNN is right on {measured}`attacks:capsules_and_cnn:cnn_fgsm_accuracy_at_0.2` of the images, the full-size one on {measured}`attacks@paper:cnn:cnn_fgsm_accuracy_at_0.2` <span id="at-EM-X-adv-cnn-eps">{claim}`EM-X-adv-cnn-eps`</span>.
#
# ### One free energy? (Appendix A)
#
# The appendix says that M-step, logistic and E-step all lower one number, the *free energy*.
# In the notation of Procedure 1, with $\beta_u$ inside the cost and
# $\mathrm{cost}_j = \sum_h \mathrm{cost}_j^h$, it reads
#
# ```{math}
# :label: eq-free-energy
# \begin{aligned}
# F = \sum_j \Bigl[ &a_j \ln a_j + (1 - a_j) \ln (1 - a_j) - \beta_a a_j \\
# &+ \mathrm{cost}_j + \sum_i a_i c_{ij} \ln c_{ij} \Bigr] .
# \end{aligned}
# ```
#
# We follow it through every step, on 3,600 draws of random votes, with λ = 1. Between two
# M-steps couplings change, and costs with them. Parent $j$ then pays for child $i$
#
# ```{math}
# \mathrm{cost}_{ij} = \sum_h \Bigl[ \beta_u + \ln \sigma_j^h
# + \frac{(\hat u_{j|i}^h - \mu_j^h)^2}{2 (\sigma_j^h)^2} - \frac{1}{2} \Bigr] .
# ```
#
# Then $\mathrm{cost}_j = \sum_i a_i c_{ij}\, \mathrm{cost}_{ij}$; right after an M-step
# this is the cost of Procedure 1. The table compares this *printed* form with two others. The
# logistic minimises the *weighted* form, with $a_j\, \mathrm{cost}_j$; the E-step minimises
# the *mixture* form, with $\mathrm{cost}_j - m_j \ln a_j$.

# %% tags=["remove-cell"]
energies = session.run(STEM, "free_energy")

# %% tags=["hide-input"]
FORMS = {form: form for form in ("printed", "weighted", "mixture")}
FORMS["weighted_matched"] = "weighted, its own E-step"
measures = frames.metrics(frames.select(chapter.all_records, "free_energy"))
forms = pd.Categorical(measures["arm"].str.rpartition("/")[2], list(FORMS))
by_form = measures.groupby(forms, observed=True)
table = pd.DataFrame()
for step in ("M-step", "logistic", "E-step"):
    table[f"{step}: largest rise (nats)"] = by_form[f"largest_rise_{step}"].max()
table["draws that rise (%)"] = 100 * by_form["share_that_rises"].mean()
table = table.rename(index=FORMS)
styled = frames.styled(table.rename_axis("form"))
styled.format(lambda value: raised(f"{value:.2g}"))

# %% [markdown]
# The printed form rises at the logistic and at the E-step; rises of $10^{-14}$ are
# rounding. The weighted form never rises with an E-step of its own,
# $c_{ij} \propto \exp(-a_j\, \mathrm{cost}_{ij})$. With the paper's E-step no quantity
# falls at every update that changes the state. On the votes of
# `test_procedure_1_can_go_round_in_a_circle` the procedure returns to an earlier state,
# where such a quantity would have to be lower. So the claim fails
# <span id="at-EM-W-8">{claim}`EM-W-8`</span>. That test has four hand-made children
# and λ = 1, and finds the circle after 100 iterations. The paper's few, with rising λ, may
# never show it.
#
# ## Deviations
#
# | what | paper | here | why it matters |
# |---|---|---|---|
# | size | 316,650 parameters | 25,098 | with three iterations, the main small network is right on fewer than nine of ten training images of 48 pixels, on more of 32 pixels |
# | length | not stated; the release's flag says 2,000,000 steps | 9,120 steps (viewpoints: 4,064), schedules stretched to them | twice the length lowers the error of each capsule network tried |
# | learning rates (48-pixel images) | capsules 3·10⁻³ (the authors' answer), CNN not stated | 3·10⁻³, the paper's CNN 10⁻³; chosen by hand on held-out stand-ins, without records | other rates may change which network errs less; no test image was seen |
# | CNN at full size | layers and rate searched, epochs not stated | printed layers; 10⁻³, as at 3·10⁻³ it gives every image one answer; 100 epochs with three seeds, 200 with the first | twice the length lowers the first seed's error |
# | files | smallNORB | a copy compressed as JPEG, 2 × 2 pixels averaged | compression may change errors; the tables of claims mark its verdicts as *derived data* |
#
# ```{fold} All deviations that the records name. In rows about the budget, “paper” is our full size
# ```

# %% tags=["hide-input"]
frames.deviations(chapter.all_records).pipe(frames.styled)

# %% [markdown]
# ## Pitfalls
#
# ### Competition inside one window only
#
# Two public implementations, [www0wwwjs1](https://github.com/www0wwwjs1/Matrix-Capsules-EM-Tensorflow/blob/0196eadc8dd38f476d3244d2ea577a1c7cdf6e8d/capsnet_em.py#L334-L338) and [yl-1993](https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch/blob/ca4cd7f45a4234ddf49efe9db34c9ff645378437/model/capsules.py#L153-L159), take a softmax over the parent types of each position on its own.
# A child then gives one unit to each of its windows, and not one in all. `test_a_child_shares_itself_out_among_all_parents_that_see_it` catches it.


# %% mystnb={"figure": {"caption": "How much does each child of a 6 by 6 grid give away in total, with 3 by 3 windows and four parent types? The paper says one unit.", "name": "fig-em-competition"}, "image": {"alt": "Four grids of six by six children with the total coupling of each. As printed, all totals are one. With competition inside one window they grow from one in the corners to nine in the middle. With one competition per type all are four, the number of parent types. As released some are smaller."}} tags=["hide-input"]
def given_away(normalise: str) -> np.ndarray:
    """Return how much each child of a grid gives away in total, [6, 6]."""
    with seeded(0), torch.no_grad():
        layer = ConvCapsules(2, 4, kernel=3, stride=1, normalise=normalise)
        pose = torch.randn(1, 6, 6, 2, 4, 4)
        activation = torch.rand(1, 6, 6, 2)
        routed = layer(pose, activation)
    # the sum over parents, the mean over types: [H', W', 3, 3]
    totals = routed.coupling[0].sum(dim=-1).mean(dim=-1)
    windows = totals.reshape(1, -1, 9).mT
    return F.fold(windows, 6, kernel_size=3)[0, 0].numpy()


figure, axes = plots.panels(4, height=2.0)
for axis, (normalise, (name, _)) in zip(axes, RULES.items(), strict=True):
    totals = given_away(normalise)
    axis.imshow(totals, cmap="Oranges", vmin=0, vmax=14)
    for (h, w), total in np.ndenumerate(totals):
        text = f"{total:.1f}".removesuffix(".0")
        axis.text(w, h, text, ha="center", va="center", fontsize=9, color="#222222")
    axis.set_title(name)
    axis.set_axis_off()
plt.show()

# %% [markdown]
# ### Activations that cancel
#
# The same two repositories ([here](https://github.com/www0wwwjs1/Matrix-Capsules-EM-Tensorflow/blob/0196eadc8dd38f476d3244d2ea577a1c7cdf6e8d/capsnet_em.py#L341-L342) and [here](https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch/blob/ca4cd7f45a4234ddf49efe9db34c9ff645378437/model/capsules.py#L117-L118)) divide $c_{ij} a_i$ by its sum over the parents before the M-step.
# But $c_{ij} a_i / \sum_k c_{ik} a_i = c_{ij}$: an absent child weighs as much as a present one. `test_an_inactive_child_has_no_say` catches it.

# %% mystnb={"figure": {"caption": "How far does one stray child among ten pull the mean of a parent? With the mistake it pulls even when its activation is zero.", "name": "fig-em-renormalised"}, "image": {"alt": "Distance of a parent's mean from where it would be without one stray child, over the activation of that child. It grows from zero; with the mistake it is large and constant."}} tags=["hide-input"]
with seeded(1):
    agreeing = 0.2 * torch.randn(9, 2, 16)
stray = torch.full((1, 2, 16), 1.0)
votes = torch.cat([agreeing, stray])
zeros, strengths = torch.zeros(2), torch.linspace(0, 1, 41)
undisturbed = em_routing(votes[:9], torch.ones(9), zeros, zeros).pose
present = torch.ones(41, 9)
activations = torch.cat([present, strengths[:, None]], dim=1)
votes = votes.expand(41, -1, -1, -1)
disturbed = em_routing(votes, activations, zeros, zeros).pose
shift = (disturbed - undisturbed).norm(dim=-1).mean(dim=-1)
# with the mistake every activation has cancelled: the child is always present
shift_with_mistake = shift[-1:].expand(41)
figure, axis = plots.panels(1, height=2.2)
axis.plot(strengths, shift, color=ROLES["printed"])
axis.plot(strengths, shift_with_mistake, color=ROLES["mistake"])
axis.set_xlabel("activation of the stray child")
axis.set_ylabel("shift of the mean")
axis.set_ylim(0, None)
plots.key(axis, {"as printed": ROLES["printed"], "activations cancel": ROLES["mistake"]})
plt.show()

# %% [markdown]
# ### A variance floor that is too low
#
# A parent whose votes are almost equal has almost no variance. Log-densities of votes under
# it differ by thousands, and couplings become ones and zeros. As a rule, a lower floor makes
# the largest gradient larger, most of all with five iterations.
# [IBM](https://github.com/IBM/matrix-capsules-with-em-routing/blob/2da9cdf9e1787f0b0984f7673f644d47b08f220c/em_routing.py#L354) {cite:p}`gritzman2019code` adds 10⁻⁹, [yl-1993](https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch/blob/ca4cd7f45a4234ddf49efe9db34c9ff645378437/model/capsules.py#L124) 10⁻⁸, the release 5·10⁻⁴. The test `values_and_gradients_are_finite` routes equal votes, too.

# %% mystnb={"figure": {"caption": "What does the variance floor prevent? Children that belong to one parent only, and the largest gradient, by number of iterations. Four types of children at sixteen positions vote almost alike. Dotted: the floor of the release.", "name": "fig-em-floor"}, "image": {"alt": "Left: share of children whose largest coupling is above 0.999 over the variance floor, for two, three and five iterations. It is zero for two, and for three and five it falls as the floor rises. Right: the largest gradient of a vote, which with five iterations falls by orders of magnitude as the floor rises."}} tags=["hide-input"]
with seeded(0):
    votes_of_types = 0.1 * torch.randn(20, 4, 1, 8, 16)
    noise = 1e-3 * torch.randn(20, 4, 16, 8, 16)
votes = (votes_of_types + noise).flatten(1, 2)
votes.requires_grad_()
ones, zeros = torch.ones(20, 64), torch.zeros(8)


def with_floor(floor: float, iterations: int) -> tuple[float, float]:
    """Return the share of children that one parent has alone (%), and the largest gradient."""
    options = {"iterations": iterations, "variance_offset": floor}
    routed = em_routing(votes, ones, zeros, zeros, **options)
    single = (routed.coupling.amax(dim=-1) > 0.999).float().mean()
    (gradient,) = torch.autograd.grad(routed.activation.sum(), votes)
    return 100 * single.item(), gradient.abs().max().item()


floors = np.logspace(-9, -1, 17).tolist()
figure, (share_axis, gradient_axis) = plots.panels(2, height=2.4)
shades = {}
for iterations, color in zip((2, 3, 5), plots.ordered(3, CAPSULES), strict=True):
    results = [with_floor(floor, iterations) for floor in floors]
    shares, gradients = zip(*results, strict=True)
    share_axis.semilogx(floors, shares, color=color)
    gradient_axis.loglog(floors, gradients, color=color)
    shades[f"t = {iterations}"] = color
for axis in (share_axis, gradient_axis):
    axis.axvline(5e-4, color=INK, lw=1, ls=":")
    axis.set_xlabel("variance floor")
share_axis.set_title("children of one parent only (%)")
gradient_axis.set_title("largest gradient")
plots.key(gradient_axis, shades)
plt.show()

# %% [markdown]
# ```{fold} Four more in public code
# ```
#
# | mistake | where | effect |
# |---|---|---|
# | a softmax over parents in place of the logistic | [www0wwwjs1](https://github.com/www0wwwjs1/Matrix-Capsules-EM-Tensorflow/blob/0196eadc8dd38f476d3244d2ea577a1c7cdf6e8d/capsnet_em.py#L352-L359) | the activations of all parents sum to one |
# | class capsules averaged over positions | [www0wwwjs1](https://github.com/www0wwwjs1/Matrix-Capsules-EM-Tensorflow/blob/0196eadc8dd38f476d3244d2ea577a1c7cdf6e8d/capsnet_em.py#L277-L278) | votes from different positions never meet in one class capsule |
# | λ fixed at 10⁻³, β started at zero | [yl-1993](https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch/blob/ca4cd7f45a4234ddf49efe9db34c9ff645378437/model/capsules.py#L82-L88) | activations stay near one half |
# | each image of a stereo pair as its own example | [yl-1993](https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch/blob/ca4cd7f45a4234ddf49efe9db34c9ff645378437/datasets/norb.py#L65-L72) | another task: the error of an image, not of a pair |
#
# ## Beyond the paper
#
# (em-competition)=
# ### Who should compete for a child?
#
# The rules of {numref}`fig-em-rules` (48-pixel images) in numbers: the mean error in
# percent of three seeds, with its 95 % interval.

# %% tags=["hide-input"]
rows = {}
for rule, iterations, arm, _ in COMPETITION:
    cells = rows.setdefault(rule, {})
    mean = frames.mean(frames.values(runs(arm), "test_error"))
    cells[plural(iterations, "iteration")] = mean
rows["as released"]["1 iteration"] = "as one type only"
columns = ["1 iteration", "2 iterations", "3 iterations"]
table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
frames.styled(table.rename_axis("competition"))

# %% [markdown]
# Each further iteration raises the error, under each rule and with each seed, and least
# under *one type only*. With three, *as printed* errs more than *one type only* by
# {measured}`test_error:copy/competition_as_printed/iterations_3 - copy/main:test_error`
# (95 % interval
# {interval}`test_error:copy/competition_as_printed/iterations_3 - copy/main:test_error`),
# *as released* by
# {measured}`test_error:copy/competition_as_released/iterations_3 - copy/main:test_error`
# ({interval}`test_error:copy/competition_as_released/iterations_3 - copy/main:test_error`).
# Both intervals include zero. Networks with the printed or the released rule are also right
# on fewer than nine of ten training images, so neither order is decided.
#
# With 32-pixel images *as printed* errs more than *one type only* by
# {measured}`test_error:competition_as_printed/iterations_3 - main:test_error`
# ({interval}`test_error:competition_as_printed/iterations_3 - main:test_error`), and the
# mistake *one window only* by
# {measured}`test_error:competition_in_one_window/iterations_3 - main:test_error`
# ({interval}`test_error:competition_in_one_window/iterations_3 - main:test_error`).
# These intervals exclude zero. But networks with these two rules are right on fewer than nine
# of ten training images, so these orders are not decided either. With every seed the mistake
# errs less than the printed rule. Like the released rule and ours, it lets a child give more
# than one unit.
#
# Why might the rule matter? As printed, parents grow narrower with each iteration. A narrow Gaussian is dense, so it attracts its children even more; in the end a parent keeps few children.
# {numref}`fig-em-children` counts them in untrained networks by $1 / \sum_i q_{ij}^2$,
# where $q_{ij} = c_{ij} a_i / m_j$ are the shares of a parent's mass. As released, a parent
# keeps even fewer. But on average trained networks err less than as printed, though three
# seeds decide no order. So this number alone need not explain the errors.


# %% mystnb={"figure": {"caption": "How many children does a parent keep? Effective number in the first capsule layer of an untrained network, by iteration: median over the parents of 16 images. A window holds 72 children.", "name": "fig-em-children"}, "image": {"alt": "Median effective number of children of a parent over the routing iterations. As printed it falls at once from dozens to fewer than ten, and then to about three. Inside one window it falls more slowly; with one type only it halves and stays there. As released it falls to about one."}} tags=["hide-input"]
def children_per_parent(normalise: str, examples: Examples) -> list[float]:
    """Return the median number of children of a parent in the first layer, by iterations."""
    recipe = EMRecipe(data="toys", sizes=(32, 8, 8, 8), normalise=normalise)
    network = new_network(recipe, (2, 32, 32), seed=0)
    recipe.start(network, examples, seed=0)
    layer = network.capsules1
    medians = []
    with torch.no_grad():
        pose, activation = network.primary_capsules(recipe.seen(examples.inputs))
        votes, activation, competition = layer.fields(pose, activation)
        for t in range(1, 6):
            routed = layer.routing(votes, activation, competition, iterations=t)
            mass = routed.coupling * activation[..., None]  # [N·H'·W', I, J]
            share = mass / mass.sum(dim=1, keepdim=True)
            children = 1 / share.square().sum(dim=1)  # nan of a parent without children
            medians.append(float(children.nanmedian()))
    return medians


toy_images = torch.tensor(toys.images[chosen])
examples = Examples(toy_images, labels)
figure, axis = plots.panels(1, height=2.6)
for normalise, (_, color) in RULES.items():
    children = children_per_parent(normalise, examples)
    axis.plot(range(1, 6), children, "o-", color=color)
axis.set_xlabel("iterations")
axis.set_ylabel("children of a parent")
axis.set_xticks(range(1, 6))
axis.set_ylim(0, None)
plots.key(axis, rule_colors)
plt.show()

# %% [markdown]
# ## Run it yourself
#
# ```shell
# capslib data fetch smallnorb mnist cifar10
# capslib run em_routing --scale cpu
# capslib run em_routing --scale paper --device cuda
# capslib execute em_routing -p scale=paper -p device=cuda
# ```
#
# {doc}`/book/rerun` says what a run takes, and how to send a record.
#
# ```{fold} Settings that all arms share at full size, and their values at each scale
# ```

# %% tags=["hide-input"]
experiment = EXPERIMENTS["test_error"]
small_48 = experiment.at("cpu")["copy/main"]
settings = frames.configuration(experiment, more={("cpu", "48-pixel images"): small_48})
frames.styled(settings)

# %% [markdown]
# ## Exercises
#
# 1. Count the parameters of the paper's network by hand: convolution, primary capsules, two layers of 3×3 windows, class capsules, with A = B = C = D = 32.

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
A = B = C = D = 32
convolution = 5 * 5 * 2 * A + A
primary = A * 17 * B
layer_1 = 9 * B * C * 16 + 2 * C
layer_2 = 9 * C * D * 16 + 2 * D
class_capsules = D * 5 * 16 + 2 * 5
by_hand = convolution + primary + layer_1 + layer_2 + class_capsules
network = MatrixCapsNet((2, 32, 32))
by_hand, by_hand == sum(weights.numel() for weights in network.parameters())

# %% [markdown]
# 2. A viewpoint multiplies every vote by a matrix from the left. In the first iteration it multiplies the means, too. Does this hold in the third iteration, for a permutation of the axes and for a rotation by 45°?

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
with seeded(0):
    votes = torch.randn(30, 4, 4, 4, dtype=torch.float64)
ones = torch.ones(30).double()
betas = torch.zeros(4).double()
half = 0.5**0.5
turn = torch.tensor([[half, -half], [half, half]])
views = {
    "permutation": torch.eye(4).roll(1, 0).double(),
    "rotation": torch.block_diag(turn, torch.eye(2)).double(),
}


def means(votes: torch.Tensor, iterations: int) -> torch.Tensor:
    """Return the poses of four parents, [4, 4, 4]."""
    routed = em_routing(votes.flatten(2), ones, betas, betas, iterations=iterations)
    return routed.pose.unflatten(-1, (4, 4))


table = pd.DataFrame(index=["t = 1", "t = 3"])
for name, view in views.items():
    cells = []
    for t in (1, 3):
        difference = means(view @ votes, t) - view @ means(votes, t)
        cells.append(raised(f"{difference.abs().max():.2g}"))
    table[name] = cells
table

# %% [markdown]
# ```{dropdown} Why?
# A Gaussian with a diagonal covariance depends on the direction of the axes. So EM routing is not exactly equivariant.
# ```
#
# ## All claims
#
# ```{fold} The paper's claims with their verdicts, reasons and runs
# ```
#
# ```{claims-table} em_routing
# ```
