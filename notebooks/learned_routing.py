# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Learned routing
#
# ```{masthead} learned_routing
# ```
#
# :::{div} answer
# Not yet tested at full size. Small networks cannot tell yet whether a learned routing makes as few errors as EM routing.
# :::
#
# Faria (2019) lets capsule networks learn their routing: an LSTM reads the votes, or a kernel compares them with their mean.
# On MNIST he reports fewer errors with the LSTM ({theirs}`LR-T3-conn-mnist`) than with an
# open implementation of EM routing ({theirs}`LR-T3-emwww-mnist`). On smallNORB the LSTM
# ({theirs}`LR-T3-conn-norb`) lies between two open implementations
# ({theirs}`LR-T3-em24-norb`, {theirs}`LR-T3-emwww-norb`). In small networks on 24-pixel
# MNIST, the LSTM errs on {measured}`errors:mnist/connectionist:test_error`, EM routing on
# {measured}`errors:mnist/em:test_error`, our steeper kernel on
# {measured}`errors:mnist/similarity:test_error`. One of three kernel networks missed our
# {term}`floor`. LSTM against EM stays open; on smallNORB none learned enough. On a toy, the
# claim on kernel routing's two parameters {verdict}`LR-W-3`. On noise, the untrained released
# kernel hardly tells near from far.
#
# ```{headlines} learned_routing
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

# %% tags=["remove-cell"]
from capslib.lab import frames, plots
from capslib.lab.chapter import Chapter
from capslib.papers.learned_routing import EXPERIMENTS, STEM, shown

chapter = Chapter(STEM, results_dir)
committed, verdicts = chapter.records, chapter.verdicts

# %% mystnb={"image": {"alt": "Test errors of the LSTM and of the kernel on MNIST. In the paper both err less than in our small networks; the kernel errs more in both."}} tags=["remove-cell", "front"]
plots.use_style()
plots.dots(
    {
        "LSTM": (verdicts["LR-T3-conn-mnist"], plots.routing_color("connectionist")),
        "kernel": (verdicts["LR-T3-sim-mnist"], plots.routing_color("similarity")),
    },
    "test error on MNIST",
    end=12,
)

# %% tags=["remove-cell"]
import itertools
import statistics

import pandas as pd
import torch
from matplotlib import pyplot as plt

from capslib.data import load
from capslib.lab.ledger import raised
from capslib.lab.statistics import interval
from capslib.layers import ConvCapsules, MatrixPrimaryCapsules
from capslib.losses import spread_loss
from capslib.networks.learned_routing import ConsensusCapsNet, FlatCapsules
from capslib.papers.learned_routing import start, table3, toy
from capslib.papers.learned_routing.recipe import MNIST
from capslib.papers.learned_routing.shown import NAMES, LAYER_NAMES
from capslib.routing import make_routing
from capslib.routing.consensus import closed_form, kernel
from capslib.training import seeded

torch.set_num_threads(threads)  # small cells: more threads would wait for each other
plots.use_style()
INK = plots.INK
MISTAKE, RELEASED = plots.ROLE_COLORS["mistake"], plots.ROLE_COLORS["released"]
SIMILARITY = plots.routing_color("similarity")

# %% [markdown]
# ## The discovery
#
# Each child capsule votes for the pose of every parent, and a parent takes its votes' mean, weighted by *couplings*. Similarity routing, one of the paper's two, should weigh votes near that mean more than far ones. Its *kernel* is a function that falls with the distance.
# As released, it starts nearly blind ({numref}`fig-lr-start`, for the class layer alone).
# Fed with noise, a new full-size network has kernels too narrow for most votes in its first
# and class layer, not in its second. In all layers a parameter $\lambda_1 \approx 12$ pulls
# the couplings towards equal shares. Wider kernels alone leave them nearly as flat. From our steep
# start, the couplings in the figure fall by more than a sixth.
# Small networks on MNIST err on {measured}`variants:mnist/similarity/released_start:test_error` from the released start, and on {measured}`errors:mnist/similarity:test_error` from a steeper one.
# Every seed agrees, but the interval of the mean difference includes zero. The learning rate was chosen for the steep start.
# The steep start differs in widths, in $\lambda$ and in the activation, so we cannot say which of these matters.

# %% mystnb={"figure": {"caption": "How much less does a far vote count than a near one? Coupling of a vote over its distance from the mean, as a ratio to that at the shade's left edge; a line for each of five classes. Shaded: the middle nine tenths of distances in the class layer of a new full-size network, which sees noise.", "name": "fig-lr-start"}, "image": {"alt": "The coupling of a vote over its distance from the mean, relative to that of a near vote, for three starts. The distances that votes have in a new network are shaded. From the released and the wide start it hardly falls across that range, from the steep one it falls by more than a sixth."}} tags=["hide-input"]
PRESETS = {"released": "released start", "spread": "wide start", "steep": "steep start"}
near, far, *_ = start.sight("released")["classes"]
distances = torch.linspace(0, 1.5, 200)


@torch.no_grad()
def relative_couplings(preset: str) -> torch.Tensor:
    """Return the coupling over the distance, relative to that of a near vote, [5, 200]."""
    with seeded(1):
        routing = make_routing("similarity", 5, 16, kernels=10, start=preset)
    parents = torch.zeros(1, 5), routing.mixture, routing.width()
    nearest = torch.full((1, 5, 1), near)
    rise = kernel(distances.expand(1, 5, -1), *parents) - kernel(nearest, *parents)
    total_weight = routing.weights.abs().sum(dim=1, keepdim=True)  # λ₁ + λ₂
    return (rise / total_weight).exp()


figure, axes = plots.panels(3, height=2.0, sharey=True)
for axis, (preset, title) in zip(axes, PRESETS.items(), strict=True):
    axis.axvspan(near, far, color=INK, alpha=0.12, lw=0)
    axis.plot(distances, relative_couplings(preset).T, color=SIMILARITY, lw=1)
    axis.set_title(title)
    axis.set_xlabel("distance")
axes[0].set_ylabel("coupling over\nthat of a near vote")
plt.show()

# %% [markdown]
# ## The idea on a toy (Figure 2)
#
# Capsules of one layer, the children, {term}`vote` for the pose of a parent.
# Here one parent gets two clusters of votes of our own. The dense one comes from less
# active children, with activations from 0.2 to 0.4. The loose one comes from more active
# ones, from 0.6 to 0.9. $\lambda_1$ pulls the couplings towards equal shares, $\lambda_2$
# towards the activations.
#
# Each disc is a vote, its area the coupling. Set both sliders to 0.1: the dense votes win. Set
# them lower: a few dense votes, on the side of the first mean (the ring), take most. From 0.1,
# drag $\lambda_1$ to 100: all discs become equal. Drag $\lambda_2$ instead: the green discs,
# of active children, grow.

# %% tags=["remove-input"]
WIDGET = """
<style>
.lr-toy { max-width: 30rem; padding: 0.7rem 0.9rem; border: 1px solid var(--hairline, #bbb); border-radius: 4px; }
.lr-toy :is(label, input, svg) { display: block; width: 100%; }
.lr-toy label { margin: 0 0 0.6rem; font-size: 0.92rem; }
.lr-toy input { margin: 0.3rem 0 0; accent-color: var(--pst-color-primary, #0b5c86); }
html[data-theme="dark"] .lr-toy svg { filter: invert(1) hue-rotate(180deg); }
.lr-toy p { margin: 0.4rem 0 0; font-size: 0.92rem; }
</style>
<div class="lr-toy">
<label>λ₁, towards equal shares: <output>0.3</output>
<input type="range" min="-2" max="2" step="0.05" value="-0.5" aria-label="lambda one, power of ten"></label>
<label>λ₂, towards the activations: <output>0.3</output>
<input type="range" min="-2" max="2" step="0.05" value="-0.5" aria-label="lambda two, power of ten"></label>
<svg role="img" aria-label="Votes as discs whose areas are their couplings; a ring marks the first mean, a cross the last."></svg>
<p class="lr-said"></p></div>
<script>(() => {
const root = [...document.querySelectorAll('.lr-toy')].pop(), data = DATA;
const sliders = root.querySelectorAll('input'), outs = root.querySelectorAll('output');
const n = data.a.length, svg = root.querySelector('svg'), NS = 'http://www.w3.org/2000/svg';
const [x, y] = [0, 1].map(d => data.v.map(v => v[d])), edge = 0.35;
const [left, top] = [Math.min(...x) - edge, -Math.max(...y) - edge];
svg.setAttribute('viewBox', [left, top, Math.max(...x) + edge - left, edge - Math.min(...y) - top].join(' '));
const make = (tag, of) => { const e = document.createElementNS(NS, tag);
  for (const k in of) e.setAttribute(k, of[k]); svg.append(e); return e; };
const discs = data.v.map((v, i) => make('circle', {cx: v[0], cy: -v[1], fill: data.colors[+(i >= data.dense)], 'fill-opacity': 0.55}));
data.v.forEach(v => make('circle', {cx: v[0], cy: -v[1], r: 0.025, fill: data.ink}));
const first = [x, y].map(z => z.reduce((a, b) => a + b) / n);
make('circle', {cx: first[0], cy: -first[1], r: 0.1, fill: 'none', stroke: data.ink, 'stroke-width': 0.04});
const cross = make('path', {d: 'M-.12 0H.12M0-.12V.12', stroke: data.ink, 'stroke-width': 0.05});
const draw = () => {
  const l = [...sliders].map(s => 10 ** s.value); l.forEach((x, k) => outs[k].textContent = +x.toPrecision(2));
  let c = data.a.map(() => 1 / n), mu;
  for (let t = 0; t <= 10; t++) {
    mu = [0, 1].map(d => c.reduce((sum, w, i) => sum + w * data.v[i][d], 0));
    if (t === 10) break;
    const e = data.v.map((v, i) => { const q = (v[0]-mu[0])**2 + (v[1]-mu[1])**2;
      const k = data.w.reduce((sum, w) => sum + Math.exp(-q / (2*w*w)), 0) / data.w.length;
      return Math.exp((k + l[1] * Math.log(data.a[i])) / (l[0] + l[1])); });
    const total = e.reduce((a, b) => a + b); c = e.map(x => x / total);
  }
  discs.forEach((disc, i) => disc.setAttribute('r', 0.6 * Math.sqrt(c[i])));
  cross.setAttribute('transform', `translate(${mu[0]} ${-mu[1]})`);
  const share = c.slice(0, data.dense).reduce((a, b) => a + b);
  root.querySelector('.lr-said').textContent = `The dense cluster has ${(100*share).toFixed(0)} % of the couplings.`;
};
sliders.forEach(s => s.addEventListener('input', draw)); draw();
})();</script>
"""
LESS_ACTIVE = plots.ARM_COLORS[1]
points, activation, _, width = toy.clusters(0)
positions = points[:, 0].round(decimals=3)
toy_data = {
    "v": positions.tolist(),
    "a": activation.round(decimals=3).tolist(),
    "w": width[0].tolist(),
    "dense": toy.DENSE,
    "ink": INK,
    "colors": [LESS_ACTIVE, SIMILARITY],
}
plots.widget(WIDGET, toy_data)

# %% mystnb={"figure": {"caption": "What do $\\lambda_1$ and $\\lambda_2$ do? A disc is a vote, its area the coupling after ten iterations, when it hardly changes. Green: more active children; magenta: less active. Ring: the first mean; cross: the last.", "name": "fig-lr-toy"}, "image": {"alt": "Four panels of votes as discs whose areas are couplings. With a large lambda 1 all are equal. With a large lambda 2 those of the loose, active cluster are larger. With both at 0.1 the dense cluster has nearly all; with both at 0.01 a few of its votes have most."}} tags=["hide-input"]
PAIRS = ((100.0, 0.1), (0.1, 100.0), (0.1, 0.1), (0.01, 0.01))
x, y = points[:, 0].T
colors = [LESS_ACTIVE] * toy.DENSE + [SIMILARITY] * toy.LOOSE
figure, axes = plots.panels(4, height=1.9, sharex=True, sharey=True)
for axis, (lambda1, lambda2) in zip(axes, PAIRS, strict=True):
    coupling = toy.couplings(0, lambda1, lambda2, iterations=10)
    axis.scatter(x, y, s=900 * coupling, alpha=0.55, color=colors, lw=0)
    axis.scatter(x, y, s=2, color=INK)
    axis.plot(x.mean(), y.mean(), "o", color=INK, mfc="none", ms=6)
    mean_x, mean_y = coupling @ x, coupling @ y
    axis.plot(mean_x, mean_y, "+", color=INK, ms=11, mew=2.2)
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"λ₁ = {lambda1:g}, λ₂ = {lambda2:g}", fontsize=9.5)
plt.show()

# %% tags=["remove-cell"]
toys = session.run(STEM, "toys")

# %% tags=["remove-input"]
large = "A large λ₁ makes the couplings equal, a large λ₂ makes them follow the activations"
names = {
    "LR-W-3": f"{large}; small ones (tested from 3 down to 0.1) gather them on the dense votes"
}
chapter.table("LR-W-3", names=names)

# %% [markdown]
# We tested no values below 0.1; for 0.01 there is only the last panel of {numref}`fig-lr-toy`.
#
# ## The method
#
# The text that we worked from keeps the numbers of the equations, but not the formulas. From its words and the released code {cite:p}`faria2019code` we rebuilt {eq}`eq-lr-objective`, {eq}`eq-lr-closed` and the others.
# One of them is uncertain: the activation of similarity routing. The text names its five quantities, and only the code shows how they combine.
#
# ### One loop for both routings
#
# For each parent $j$ the couplings of its $n$ children sum to one. In dynamic routing (RBA) and EM routing parents compete for children; here they do not. The first mean weighs all votes alike.
#
# ```{live-source} capslib.routing.consensus.consensus
# :test: tests/routing/conformance.py::it_is_what_the_plain_loops_say
# ```
#
# A vote is $V_{ij} = W_{ij} M_i / \lVert W_{ij} \rVert_F$, with pose $M_i$ of the child and a learned $4 \times 4$ matrix $W_{ij}$. The norm keeps a layer from lengthening poses. For one parent, $v_i$ is this vote as a vector, and $c_i$ its coupling.
#
# ### Similarity routing
#
# For a given mean $\mu$, the couplings minimise a disagreement. Its last two terms are penalties: up to a constant, Kullback–Leibler divergences from equal shares and from the activations $a_i$.
#
# ```{math}
# :label: eq-lr-objective
# \begin{aligned}
# J(c, \mu) = &-\sum_i c_i\, k(\mu, v_i) + \lambda_1 \sum_i c_i \ln (n\, c_i) \\
# &+ \lambda_2 \sum_i c_i \ln \frac{c_i}{a_i}, \qquad \sum_i c_i = 1 .
# \end{aligned}
# ```
#
# With a Lagrange multiplier the couplings have a closed form. The activation of the parent has
# three parameters of its own, $\theta$. Before a logarithm the release adds 0.1 to $a_i$, but
# only in the couplings. We add it in the activation of the parent, too:
#
# ```{math}
# :label: eq-lr-closed
# \begin{aligned}
# c_i &= \operatorname{softmax}_i \frac{k(\mu, v_i) + \lambda_2 \ln (a_i + 0.1)}{\lambda_1 + \lambda_2}, \\
# a &= \sigma\Bigl(\theta_1 \sum_i c_i\, k(\mu, v_i) + |\theta_3| \sum_i c_i \ln (a_i + 0.1) + \theta_2\Bigr) .
# \end{aligned}
# ```
#
# ```{live-source} capslib.routing.consensus.closed_form
# :test: tests/papers/test_learned_routing.py::test_the_closed_form_is_what_projected_gradient_finds
# ```
#
# In the activation, $k$ is the kernel at the last mean but one, which gave the couplings.
# The mean $\mu = \sum_i c_i v_i$ also minimises $J$ if the kernel is quadratic. The paper's kernel is a mixture of Gaussians, $k(\mu, v) = \sum_q \operatorname{softmax}(w)_q \exp(-\lVert \mu - v \rVert^2 / 2 \ell_q^2)$, and for it the mean is an approximation.
#
# ```{live-source} capslib.routing.consensus.kernel
# :test: tests/routing/test_consensus.py::test_every_start_is_what_the_plain_loops_say
# ```
#
# ```{live-source} capslib.routing.consensus.mixture_of_gaussians
# :test: tests/routing/test_consensus.py::test_every_start_is_what_the_plain_loops_say
# ```
#
# Two earlier objectives are similar. Li et al. {cite:p}`li2008` use distances and one entropy. Wang and Liu
# {cite:p}`wang2018` use inner products, one divergence, and couplings that sum to one over the parents. Faria uses a kernel, a second divergence, and couplings that sum to one over the children.
#
# Full-size networks take the released start. The other two are ours. Small networks take the steep one, because their training is short.
#
# | start | widths $\ell_q$ | $\lambda_1$, $\lambda_2$ | $\theta_1$, $\theta_2$, $\theta_3$ |
# |---|---|---|---|
# | released | near zero, standard deviation 0.1 | near 12, 1 | near 0, 1, near 0 |
# | wide | 0.5 to 4 | near 12, 1 | near 0, 1, near 0 |
# | steep | 0.1 to 1 | near 1, 1 | 10, −5, near 0 |
#
# *Near 0*: from N(0, 0.1²).
#
# ### Connectionist routing
#
# For every child and parent, an LSTM with 16 units reads $[\mu, a_i, v_i, c_i]$ in each iteration. A perceptron $g$ turns its hidden state into the logit of the coupling.
# In the end a perceptron $f$ turns $\sum_i c_i s_i$, a mean of the LSTM's cell states $s_i$, into the activation of the parent.
# All routings have three iterations. The layers differ in the numbers
# of hidden units (Table 2) and of Gaussians in a kernel:
#
# | layer | hidden units of $g$ | hidden units of $f$ | Gaussians in a kernel |
# |---|---|---|---|
# | first | none | none | 4 |
# | second | 32, 32 | 64, 64 | 4 |
# | classes | 64, 64 | 124, 124 | 10 |
#
# ```{fold} The lines that compute both routings
# ```
#
# ```{live-source} capslib.routing.consensus.similarity_routing
# :given: bias=None logistic=True
# :test: tests/papers/test_learned_routing.py::test_the_activation_is_that_of_equation_13
# ```
#
# ```{live-source} capslib.routing.consensus.connectionist_routing
# :given: bias=None logistic=True
# :test: tests/routing/test_consensus.py::test_the_lstm_is_that_of_torch
# ```
#
# ### The network

# %% mystnb={"figure": {"caption": "What does an image pass through? The network of Table 1 for smallNORB, with the shapes of its layers. Each capsule has a pose of 4 by 4 and an activation; any routing can stand where an arrow says so.", "name": "fig-lr-network"}, "image": {"alt": "The network from left to right: an image of 32 by 32 pixels, a convolution, primary capsules, two layers of conv capsules, class capsules. Each has its shape."}} tags=["hide-input"]
network = ConsensusCapsNet((1, 32, 32), routing="connectionist").eval()
image = torch.zeros(1, 1, 32, 32)
with torch.no_grad():
    filters, *grid = network.conv(image).shape[1:]
    pose, activation = network.primary_capsules(image)
    sizes = [(32, 32), (*grid, filters), activation.shape[1:]]
    for layer in (network.capsules1, network.capsules2, network.classes):
        pose, activation, _ = layer(pose, activation)
        sizes.append(activation.shape[1:])
shapes = [" × ".join(map(str, size)) for size in sizes]
capsules = ["primary capsules", "conv capsules", "conv capsules", "class capsules"]
names = ["image", "feature maps", *capsules]
windows = [f"{kernel}×{kernel}, stride {stride}" for kernel, stride in network.WINDOWS]
first, second, *routed = windows
routings = [f"routing,\n{window}" for window in routed]
operations = [first, second, *routings, "routing", ""]
layers = list(zip(names, shapes, operations, strict=True))
plots.network(layers, INK)
plt.show()

# %% [markdown]
# As released, primary poses pass a ReLU and are divided by their norm. All poses get
# coordinates added before the votes. The paper mentions none of this.
#
# A simpler network trains in seconds: four types of capsules a layer, no batch norm, raw
# poses, and images of 17 × 17 pixels. With both routings its {term}`spread loss` falls after
# some fifty steps ({numref}`fig-lr-small`).


# %%
class SmallConsensusCapsNet(torch.nn.Module):
    """Four types a layer, no batch norm, raw primary poses."""

    def __init__(self, classes: int = 10, **routing: object):
        super().__init__()
        flat = {"coordinates": True, **routing}
        convolutional = {"transform": "bounded", **flat}
        self.conv = torch.nn.Conv2d(1, 16, 5, stride=2)
        self.primary = MatrixPrimaryCapsules(16, 4)
        self.capsules1 = ConvCapsules(4, 4, kernel=3, stride=2, **convolutional)
        self.capsules2 = ConvCapsules(4, 4, kernel=3, stride=1, **convolutional)
        self.classes = FlatCapsules(4, classes, **flat)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pose, activation = self.primary(self.conv(images).relu())
        for layer in (self.capsules1, self.capsules2, self.classes):
            pose, activation, _ = layer(pose, activation)
        return activation  # [N, classes]


# %%
STEPS = 120
digits = load("digits", "train")
images = torch.tensor(digits.images[:640]).float() / 255
images = torch.nn.functional.interpolate(images, size=17)
labels = torch.tensor(digits.labels[:640])
with seeded(0):
    batches = torch.randint(640, (STEPS, 16))


def losses(routing: str, **options: object) -> list[float]:
    """Train the small network and return its loss at each step."""
    with seeded(0):
        network = SmallConsensusCapsNet(routing=routing, **options)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    curve = []
    for batch in batches:
        activation = network(images[batch])
        loss = spread_loss(activation, labels[batch], margin=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


curves = {
    "connectionist": losses("connectionist"),
    "similarity": losses("similarity", start="steep"),
}

# %% mystnb={"figure": {"caption": "Do both routings learn? Spread loss of each batch of 16 small digits, one seed.", "name": "fig-lr-small"}, "image": {"alt": "Spread loss of each batch over 120 training steps of the small network. With the LSTM and with the kernel it stays where it starts for some fifty steps and then falls."}} tags=["hide-input"]
figure, axis = plots.panels(1, height=2.2)
steps = range(1, STEPS + 1)
colors = {}
for routing, curve in curves.items():
    color = plots.routing_color(routing)
    colors[NAMES[routing]] = color
    axis.plot(steps, curve, color=color, lw=1.2)
plots.key(axis, colors)
axis.set_xlabel("step")
axis.set_ylabel("spread loss")
axis.set_ylim(0, None)
plt.show()

# %% [markdown]
# ## Experiments
#
# Two settings stand behind the numbers of this chapter:
#
# | | full size (scale `paper`) | small networks (scale `cpu`) |
# |---|---|---|
# | used for | parameters, costs, starts | Table 3, our own questions |
# | images | 32-pixel crops of smallNORB, 28-pixel MNIST | 24-pixel crops; 10,000 digits, or the single images of 10,000 smallNORB pairs |
# | filters and capsule types | 64, 8, 16, 16 | 16, 4, 8, 8 |
# | training | 100 epochs; not yet run | 8 epochs on MNIST, 4 on smallNORB; 3 seeds |
#
# ### Table 3: test error
#
# Does a learned routing err less than EM routing? The paper compares with errors that others measured in other networks.
# Here EM routing and RBA stand in the same network as the LSTM and the kernel.
# But more than the routing differs. EM routing's start is set on training images; the kernel
# has our steep start. Each routing has the better of two learning rates.

# %% tags=["remove-cell"]
errors = session.run(STEM, "errors")
pilot = session.run(STEM, "pilot")

# %% [markdown]
# Test error in percent: the paper's full-size value over the mean of our three *small networks*. The sizes differ, so nothing is decided. The paper's EM rows quote errors that others measured; we did not rerun them (–). The last two rows are ours alone.

# %% tags=["remove-input"]
NOT_PRINTED = "not in the paper"
error_records = frames.best([*committed, *errors], "errors", views="separate")
trained_records = frames.select(error_records, "errors", trained=True)
sets = list(dict.fromkeys(record.config["data"] for record in error_records))


def our_error(routing: str, data: str) -> str:
    """Return the mean test error of a routing that the paper did not train."""
    networks = frames.select(trained_records, "errors", routing=routing, data=data)
    values = frames.values(networks, "test_error")
    return f"{statistics.fmean(values):.2f}" if values else frames.MISSING


rows = {
    "connectionist (LSTM)": ["LR-T3-conn-mnist", "LR-T3-conn-norb"],
    "EM, Gritzman 2019": [NOT_PRINTED, "LR-T3-em24-norb"],
    "EM, www0wwwjs1": ["LR-T3-emwww-mnist", "LR-T3-emwww-norb"],
    "EM, original authors": [NOT_PRINTED, "LR-T3-emorig-norb"],
    "similarity (kernel)": ["LR-T3-sim-mnist", "LR-T3-sim-norb"],
}
for routing in ("em", "dynamic"):
    label = f"{NAMES[routing]}, in our network"
    rows[label] = [our_error(routing, data) for data in ("mnist", "smallnorb")]
table = pd.DataFrame(rows, index=["MNIST", "smallNORB"]).T
chapter.side_by_side(table.rename_axis("routing"), digits=2)

# %% mystnb={"figure": {"caption": "Which routing errs least? Our small networks: a dot a seed, the mean larger, its 95 % interval as a band. Open: the paper, at full size. A network has *learned* if it is right on nine of ten training images, as counted in training.", "name": "fig-lr-errors"}, "image": {"alt": "Test errors of the LSTM, the kernel, EM routing and RBA on two sets. On MNIST the LSTM errs on {measured}`errors:mnist/connectionist:test_error`, EM routing on {measured}`errors:mnist/em:test_error`, the kernel on {measured}`errors:mnist/similarity:test_error` and RBA on {measured}`errors:mnist/dynamic:test_error`. On smallNORB all err on about a third, and none has learned."}} tags=["hide-input"]
PRINTED = {
    ("mnist", "connectionist"): "LR-T3-conn-mnist",
    ("mnist", "similarity"): "LR-T3-sim-mnist",
    ("smallnorb", "connectionist"): "LR-T3-conn-norb",
    ("smallnorb", "similarity"): "LR-T3-sim-norb",
}


def printed_error(data: str, routing: str) -> float | None:
    """Return the paper's error of a routing that it trained."""
    claim = PRINTED.get((data, routing))
    return verdicts[claim].claim.value if claim else None


figure, axes = plots.panels(len(sets), height=2.5, squeeze=False)
for axis, data in zip(axes[0], sets, strict=True):
    rows = {}
    for routing, name in NAMES.items():
        networks = frames.select(trained_records, "errors", data=data, routing=routing)
        learned = len(shown.that_learned(networks))
        label = f"{name}\n{learned} of {len(networks)} learned"
        color = plots.routing_color(routing)
        seeds = frames.values(networks, "test_error")
        ends = interval(seeds, (0, 100)) or ()
        rows[label] = plots.Row(color, seeds, printed_error(data, routing), ends)
    plots.rows(axis, rows)
    axis.set_title(shown.SETS.get(data, data))
    axis.set_xlabel("test error (%)")
    axis.set_xlim(0, None)
plt.show()

# %% tags=["remove-input"]
names = {"LR-W-1": "The LSTM makes as few errors as EM routing, or fewer; the kernel more"}
chapter.table("LR-W-1", names=names)

# %% [markdown]
# A network counts only if it has *learned*, our {term}`floor`: nine of ten training images
# right at the end. These are cut at random places, so they are harder than test images.
# On MNIST all networks with the LSTM and EM routing pass, two of three with the kernel, and none with RBA. On smallNORB none passes.
# One comparison is left: on MNIST, the error of EM routing is {measured}`errors:mnist/em - mnist/connectionist:test_error` above that of the LSTM. Its interval, {interval}`errors:mnist/em - mnist/connectionist:test_error`, leaves the order open.
# With up to $0.3$ points more the LSTM would still count as no worse; the lower end lies beyond that.
#
# The paper's own table is less clear than its text. On smallNORB the LSTM errs on {theirs}`LR-T3-conn-norb`, more than Gritzman's {theirs}`LR-T3-em24-norb`. The kernel's {theirs}`LR-T3-sim-norb` is no more than the {theirs}`LR-T3-emwww-norb` of the other open implementation.
# The text also says that both learned routings stay above the {theirs}`LR-T3-emorig-norb` of EM routing's authors. Their networks see both images of a stereo pair. {claim}`LR-W-2` waits for such networks at full size.
#
# *What does training the routing bring?* We also left the routing untrained. Then no
# network passes the floor: a frozen LSTM errs on
# {measured}`errors:mnist/connectionist/frozen:test_error` of MNIST, a frozen kernel on
# {measured}`errors:mnist/similarity/frozen:test_error`.
# But this freezes what computes couplings and what computes activations: either could be the cause.
#
# ```{fold} How the learning rates were chosen
# ```
#
# Errors in percent on training images that were held out, for one seed, after a part of the steps of Table 3. The rate with ✓ is that of Table 3.

# %% tags=["remove-input"]
pilot_records = frames.best([*committed, *pilot], "pilot")
pilot_scale = pilot_records[0].trial.scale
pilot_arms = EXPERIMENTS["pilot"].at(pilot_scale).values()
error_arms = EXPERIMENTS["errors"].at(pilot_scale).values()
shares = shown.share_of_steps(pilot_arms, error_arms)
rates = list(table3.RATES.values())
rows = {}
for (data, name), held_out in shown.rates(pilot_records).items():
    lowest_rate = min(held_out, key=held_out.get)
    texts = {rate: f"{error:.1f}" for rate, error in held_out.items()}
    texts[lowest_rate] += " ✓"
    cells = [texts.get(rate, "") for rate in rates]
    cells.append(f"{100 * shares[data]:.0f}")
    rows[data, name] = cells
columns = [f"rate {rate:g}" for rate in rates]
columns.append("part of the steps (%)")
frames.table(rows, columns, "set", "routing")

# %% [markdown]
# ### What the couplings prefer after training
#
# Does a parent listen to votes that lie near its mean, or to active children? We sort its children once by the distance of their votes and once by activation, and compare the first tenth with the last.

# %% mystnb={"figure": {"caption": "Whom does a parent listen to? Mean coupling of one tenth of its children over that of the opposite tenth, after the last iteration, by layer. EM routing's are multiplied by the child's activation. A dot is a small network on MNIST, learned or not; three seeds. Dotted: both weigh alike. No ratio is capped.", "name": "fig-lr-follow"}, "image": {"alt": "Two panels of ratios of couplings on a logarithmic scale, a row for each routing and layer. Left: near votes outweigh far ones with the kernel and EM routing in every network, and with the LSTM in nearly all. With RBA the ratio is near one. Right: active children outweigh inactive ones with the kernel and EM routing. With the LSTM the least active outweigh the most active in the first layer."}} tags=["hide-input"]
ORDERS = {"distance": "nearest over farthest", "activation": "most over least active"}
shown_set = "mnist" if "mnist" in sets else sets[0]
networks = frames.select(trained_records, "errors", data=shown_set)


def weight_ratios(order: str, layer: str, routing: str) -> list[float]:
    """Return how much more the first tenth of the children weighs than the last."""
    ratios = []
    for record in frames.select(networks, "errors", routing=routing):
        lowest, *_, highest = record.series[f"by_{order}_{layer}_3"]
        first, last = (lowest, highest) if order == "distance" else (highest, lowest)
        ratios.append(first / max(last, 1e-4))
    return ratios


figure, axes = plots.panels(2, height=3.4)
for axis, (order, title) in zip(axes, ORDERS.items(), strict=True):
    rows = {}
    for routing, name in NAMES.items():
        for layer, layer_name in LAYER_NAMES.items():
            ratios = weight_ratios(order, layer, routing)
            color = plots.routing_color(routing)
            rows[f"{name}, {layer_name}"] = plots.Row(color, ratios)
    plots.rows(axis, rows, guessing=0)
    axis.axvline(1, color=INK, ls=":", lw=1)
    axis.set_title(title)
    axis.set_xscale("log")
    axis.set_xlabel("ratio of couplings")
plt.show()

# %% [markdown]
# With the kernel and EM routing, near votes and active children weigh more in all layers.
# With kernels frozen at our steep start they do so already, though less, in every network.
# The LSTM, which may learn anything, prefers near votes in nearly all networks. In the first layer it prefers the *least* active children.
# One LSTM network, trained for twice the epochs, prefers the most active ones there. No run
# tells why.
#
# ## Deviations
#
# The paper leaves questions open, and we changed a few things. These matter:
#
# | | paper, or its code | here | why it matters |
# |---|---|---|---|
# | size and training | 86,000 parameters, 100 epochs | a quarter of the filters, half of the capsule types, 4 or 8 epochs | No cell of Table 3 is decided. |
# | learning rate | 0.003, times 0.96 every 20,000 steps (code) | 0.003 or 0.01 by a pilot, falling to zero | Most of our short trainings do better with the larger rate. |
# | start of similarity routing | released start | steep start in small networks | From the released start, small networks on MNIST err more often with each seed, and none passes our floor of training accuracy. |
# | primary poses | not mentioned; the code has a ReLU, a norm and coordinates | as in the code | [Without ReLU and norm](#where-released-code-and-paper-differ) the kernel may err less. |
# | loss | not stated; the code's default is softmax cross entropy | spread loss | One loss for all routings: activations of EM routing and RBA are not logits. |
# | $\theta$ of the activation | by type (text), by grid column (code) | by type | Capsules of one type then act alike everywhere. |
# | inputs of $g$ and $f$ | hidden state to $g$, cell state to $f$ (text); [the reverse](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/ace32c683b6d393edd0b7175a272a8bf65b57680/models/coreimp/rnnRouting.py#L71-L75) (code) | as in the text | A [variant](#where-released-code-and-paper-differ) trains with the reverse. |
# | EM routing | errors of others, in other networks | ours, in the same network | Rows differ in routing, start and rate. |
# | reported network | not stated; the code can choose by test accuracy | the last | Test images choose nothing here. |
# | smallNORB | original images | made from a JPEG export | Compression may change the errors. |
#
# ```{fold} Every deviation and every setting of Table 3
# ```
#
# In the row *start of similarity routing*, θ from N(0, 0.1²) means $\theta_1$ and $\theta_3$.

# %% tags=["remove-input"]
frames.deviations(error_records).pipe(frames.styled)

# %% tags=["remove-input"]
on_mnist = {}
for size in ("cpu", "paper"):
    on_mnist[size, "MNIST"] = EXPERIMENTS["errors"].at(size)["mnist/connectionist"]
hidden = ("learning_rate", "network", "downsample")
settings = frames.configuration(EXPERIMENTS["errors"], hidden, on_mnist, shown=MNIST)
frames.styled(settings)

# %% [markdown]
# ## Pitfalls
#
# ### The softmax over the wrong axis
#
# The softmax runs over the *children*. A softmax over the parents, as in RBA and EM routing, gives another algorithm and no error message. The single parent of the toy then takes all of every vote, whatever $\lambda_1$ and $\lambda_2$ are.
# `couplings_sum_to_one` holds each routing to the axis that it declares. We know of no public code of Faria's routings with this mistake.


# %% mystnb={"figure": {"caption": "Do $\\lambda_1$ and $\\lambda_2$ do anything? Share of the couplings that the dense cluster has, when both have the same value. Dotted: its share of the votes.", "name": "fig-lr-axis"}, "image": {"alt": "Share of the dense cluster over lambda 1 and 2. With the softmax over children it rises from below its share of the votes to nearly one as both fall. With the softmax over parents it is always the same."}} tags=["hide-input"]
def dense_share(weight: float, over: str) -> float:
    """Return the share of the dense cluster of the toy when λ₁ and λ₂ have this value."""
    votes, activation, mixture, width = toy.clusters(0)
    weights = torch.tensor([weight, weight]).double()
    prior = activation.log()
    axis = {"children": -1, "parents": -2}[over]
    mu = votes.mean(dim=0)[0]
    for _ in range(10):
        # [parents, children]
        k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)
        logits = closed_form(k, prior, *weights)
        coupling = logits.softmax(dim=axis)[0]
        mu = coupling @ votes[:, 0] / coupling.sum()
    return float(coupling[: toy.DENSE].sum() / coupling.sum())


weights = torch.logspace(-1, 2, 40).tolist()
share_of_votes = toy.DENSE / (toy.DENSE + toy.LOOSE)
figure, axis = plots.panels(1, height=2.2)
axis.axhline(share_of_votes, color=INK, lw=1, ls=":")
for over, color in (("parents", MISTAKE), ("children", SIMILARITY)):
    shares = [dense_share(weight, over) for weight in weights]
    axis.semilogx(weights, shares, color=color)
plots.key(axis, {"over children": SIMILARITY, "over parents": MISTAKE})
axis.set_xlabel("λ₁ = λ₂")
axis.set_ylabel("share")
axis.set_ylim(0, 1.03)
plt.show()

# %% [markdown]
# ### States that change places
#
# TensorFlow's LSTM cell returns (cell, hidden). The release indexes this pair as (hidden, cell), so
# [its $g$](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/ace32c683b6d393edd0b7175a272a8bf65b57680/models/coreimp/rnnRouting.py#L71-L75) reads the cell state, and
# [its $f$](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/ace32c683b6d393edd0b7175a272a8bf65b57680/models/coreimp/rnnRouting.py#L114-L116) the hidden state.
# `test_the_lstm_is_that_of_torch` tests our order. What the swap does to the error is undecided ({numref}`fig-lr-variants`).
#
# ### A threshold for each column
#
# The release stores $\theta$ along an axis of the grid, so it belongs to columns of the grid and not to types (the paper's channels).
# `test_theta_of_columns_belongs_to_the_columns_of_a_grid` tests this option.

# %% mystnb={"figure": {"caption": "Does a capsule act the same everywhere? Activation of one type of capsule in six columns that see exactly the same, in a new routing with the released start. Dashed: as released. The axis shows a small range.", "name": "fig-lr-columns"}, "image": {"alt": "Activation of one type of parent in six columns whose children are all alike. With theta by type it is the same everywhere, with theta by column it differs from column to column."}} tags=["hide-input"]
with seeded(1):
    votes = torch.randn(1, 18, 1, 16)
    activation = torch.rand(18)
votes = votes.expand(6, -1, -1, -1)  # six columns that see the same
activation = activation.expand(6, -1)
figure, axis = plots.panels(1, height=2.2)
for columns, color, line in ((None, SIMILARITY, "o-"), (6, RELEASED, "o--")):
    with seeded(0), torch.no_grad():
        routing = make_routing("similarity", 1, 16, start="released", columns=columns)
        parents = routing(votes, activation)
    axis.plot(range(1, 7), parents.activation[:, 0], line, color=color)
plots.key(axis, {"θ of the type": SIMILARITY, "θ of the column, as released": RELEASED})
axis.set_xlabel("column")
axis.set_ylabel("activation")
plt.show()

# %% [markdown]
# ### A reference that misleads
#
# The release has
# [its own EM routing](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/5b5096535c02cdbf1818b41e0a263aa556267644/models/coreimp/emRouting.py#L43-L62),
# with a normaliser that its author's comment calls wrong.
#
# ## Beyond the paper
#
# ### Where released code and paper differ
#
# Do the differences matter for the error? Each variant, a small network on MNIST, differs from its row
# of Table 3 in one option. A start sets widths, $\lambda$ and $\theta$ together; cross
# entropy leaves out the logistic function of the classes.

# %% tags=["remove-cell"]
variants = session.run(STEM, "variants")

# %% mystnb={"figure": {"caption": "Which difference between code and paper matters? Test error minus that of the same seed in Table 3, in points. Left of the line: fewer errors. Small: seeds; large: their mean, with its 95 % interval.", "name": "fig-lr-variants"}, "image": {"alt": "Two panels with a row for each change. With the LSTM all marks lie near the line, those of cross entropy left of it. With the kernel the released start, which errs on {measured}`variants:mnist/similarity/released_start:test_error`, and the wide one, on {measured}`variants:mnist/similarity/wide_kernels:test_error`, lie far right of it in every seed. Raw poses, on {measured}`variants:mnist/similarity/raw_poses:test_error`, lie left of it in every seed."}} tags=["hide-input"]
variant_records = frames.best([*committed, *variants], "variants")
changes = shown.changes(error_records, variant_records)
changed_sets = list(dict.fromkeys(data for data, *_ in changes))
panels = list(itertools.product(changed_sets, shown.LEARNERS))
figure, axes = plots.panels(2, height=2.4, rows=len(changed_sets), squeeze=False)
for axis, (data, routing) in zip(axes.flat, panels, strict=True):
    color = plots.routing_color(routing)
    rows = {}
    for (*arm, change), (_, points) in changes.items():
        if arm == [data, NAMES[routing]] and change != shown.UNCHANGED:
            rows[change] = plots.Row(color, points, interval=interval(points) or ())
    axis.axvline(0, color=color, lw=1.4)
    plots.rows(axis, rows)
    axis.set_title(f"{NAMES[routing]}, {data}")
    axis.set_xlabel("more errors than in Table 3 (points)")
plt.show()

# %% [markdown]
# Starts seem to matter. From the wide start the kernel errs on
# {measured}`variants:mnist/similarity/wide_kernels:test_error`, from the released one on
# {measured}`variants:mnist/similarity/released_start:test_error`. With every seed both exceed
# the error from the steep start of Table 3. Only the wide start's interval excludes zero. From
# neither start does a network pass the floor.
#
# The other changes are undecided: every interval contains zero. Without ReLU and norm
# (*raw poses*) the kernel errs less with every seed, on
# {measured}`variants:mnist/similarity/raw_poses:test_error`. So does the LSTM with cross
# entropy, the code's default, on
# {measured}`variants:mnist/connectionist/cross_entropy:test_error`.
#
# ### Can these routings tell votes from their negatives?
#
# {doc}`RBA and EM routing without a bias cannot </book/papers/negation_limitation>`. A kernel sees distances only, so similarity routing cannot either; an LSTM reads the votes themselves, and can.
# We route random votes $v$, then $-v$, in a new routing. The table has the
# largest difference of all draws. Zero in both columns: the routing cannot tell $v$ from
# $-v$.

# %% tags=["remove-cell"]
negation = session.run(STEM, "negation")

# %% tags=["remove-input"]
negation_records = frames.best([*committed, *negation], "negation")
rows = {}
for name, values in shown.negation(negation_records).items():
    rows[name] = [raised(f"{value:.2g}") for value in values]
columns = [
    "largest |pose(v) + pose(−v)|, in mean pose lengths",
    "largest change of activations",
]
frames.table(rows, columns)

# %% [markdown]
# A bias breaks the symmetry of the poses in every routing that has this symmetry; the LSTM has none to break. The activations of EM routing stay the same, as theorem 3 of {doc}`Negation and bias <negation_limitation>` says.
#
# ### What does each routing cost?
#
# The LSTM has by far the most parameters of its own. For the full-size network the table
# gives operations of a training step for one image, and the memory kept for its backward
# pass. Of the {doc}`paths </book/speed>`, *eager* is the definition, which no training uses,
# and *fast* forms the votes again in the backward pass. The last two columns divide a step's
# time by that of the network with EM routing. In the first, both networks are on the *fast*
# path. In the second they run as in a long training, which compiles EM routing and RBA. The
# kernel was timed before it could be compiled, so its last entry and its hours below are too
# high. The LSTM cannot be compiled.

# %% tags=["remove-cell"]
costs = session.run(STEM, "costs")

# %% tags=["remove-input"]
cost_records = frames.select(committed, "costs", "paper") or costs


def mean_cost(routing: str, metric: str) -> float:
    """Return the mean of a cost over the records of a routing."""
    records = frames.select(cost_records, "costs", routing=routing)
    return statistics.fmean(frames.values(records, metric))


rows = {}
for routing, name in NAMES.items():
    parameters = mean_cost(routing, "parameters_of_routing")
    operations = mean_cost(routing, "flops_of_an_image")
    rows[name] = [f"{parameters / 1e3:,.1f}", f"{operations / 1e6:,.0f}"]
    for path in ("eager", "fast"):
        rows[name].append(f"{mean_cost(routing, f'bytes_{path}') / 1e6:,.1f}")
    for times in ("times_em", "times_em_in_training"):
        rows[name].append(f"{mean_cost(routing, times):,.1f}")
columns = ["parameters of its own (1,000)", "MFLOP", "MB kept, eager", "MB kept, fast"]
columns += ["time ÷ time with EM, fast", "time ÷ time with EM, long training"]
frames.table(rows, columns, "routing")

# %% [markdown]
# The column MFLOP counts matrix products and convolutions only, so it leaves out the kernel's routing, which has neither.

# %% tags=["remove-input"]
names = {"LR-X-params": "Parameters of the smallNORB network without its routing"}
chapter.table("LR-X-params", names=names)

# %% [markdown]
# ## Run it yourself
#
# ```shell
# capslib data fetch mnist smallnorb
# capslib run learned_routing --scale cpu --experiment pilot
# capslib run learned_routing --scale cpu --experiment errors --experiment variants
# capslib run learned_routing --scale paper --device cuda
# ```
#
# {doc}`/book/rerun` describes the rest, and {doc}`/book/costs` what each run costs.

# %% tags=["remove-input"]
paper_arms = EXPERIMENTS["errors"].at("paper").values()
(low, cheapest), *_, (high, dearest) = shown.hours_of_table_3(cost_records, paper_arms)
frames.say(
    f"At full size, one seed of the {cheapest} takes about {low:.0f} core-hours, "
    f"and one of the {dearest} {high:,.0f}. "
    "Networks that see pairs of images have half as many steps."
)

# %% [markdown]
# ## Exercises
#
# 1. Let $\lambda_1 = 0$. What are the couplings if all votes are the same?

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
# the activations, divided by their sum; the floor of 0.1 is left out
same_votes = torch.ones(5)
prior = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2])
lambda1, lambda2 = torch.tensor([0.0, 0.5])
logits = closed_form(same_votes, prior.log(), lambda1, lambda2)
couplings = logits.softmax(0).tolist()
[round(coupling, 3) for coupling in couplings]

# %% [markdown]
# 2. Let all children be equally active. Show that one vote far away from all others gets a coupling that does not vanish, whatever its distance.

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
# A kernel lies between 0 and 1, so no two logits differ by more than 1 / (λ₁ + λ₂).
k = torch.tensor([1.0, 1.0, 1.0, 0.0])
lambda1, lambda2 = torch.tensor([12.0, 1.0])
logits = closed_form(k, torch.zeros(4), lambda1, lambda2)
couplings = logits.softmax(0).tolist()
[round(coupling, 3) for coupling in couplings]

# %% [markdown]
# 3. How many parameters does the LSTM of a layer have, and how many would it have for vector capsules with 8 dimensions?


# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
def lstm_parameters(dim: int, units: int = 16) -> int:
    """Return the parameters of an LSTM that reads a mean, a vote, and two numbers."""
    inputs = 2 * dim + 2
    weights_of_a_gate = units * (inputs + units)
    biases_of_a_gate = units
    return 4 * (weights_of_a_gate + biases_of_a_gate)


lstm_parameters(16), lstm_parameters(8)

# %% [markdown]
# ## All claims
#
# ```{fold} The paper's claims with their verdicts, reasons and runs
# ```
#
# ```{claims-table} learned_routing
# ```
