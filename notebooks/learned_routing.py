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
# Not yet tested at full size. Small networks leave open whether a learned routing errs as little as EM routing.
# :::
#
# Faria (2019) learns the routing itself: an LSTM weighs the votes, or a kernel between votes does.
# The LSTM equals or beats open implementations of EM routing, he reports, and the kernel does not.
# It errs on {theirs}`LR-T3-conn-mnist` of MNIST and {theirs}`LR-T3-conn-norb` of smallNORB.
# Our networks are small.
# On MNIST the LSTM errs on {measured}`errors:mnist/connectionist:test_error`, EM routing on {measured}`errors:mnist/em:test_error` and the kernel on {measured}`errors:mnist/similarity:test_error`.
# On smallNORB too few of them learn for a comparison.
# What the paper says of the kernel's two weights {verdict}`LR-W-3`.
# The released kernel starts nearly blind: it hardly tells near votes from far ones.
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

# Before anything is drawn: this cell answers for a parameter that is wrong.
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

# %% tags=["hide-input"]
import itertools
import statistics

import torch
from IPython.display import display
from matplotlib import pyplot as plt

from capslib.data import load
from capslib.lab.ledger import raised
from capslib.lab.statistics import interval
from capslib.layers import ConvCapsules, MatrixPrimaryCapsules
from capslib.losses import spread_loss
from capslib.networks.learned_routing import ConsensusCapsNet, FlatCapsules
from capslib.papers.learned_routing import start, table3, toy
from capslib.papers.learned_routing.recipe import MNIST
from capslib.papers.learned_routing.shown import NAMES, PLACES
from capslib.routing import make_routing
from capslib.routing.consensus import closed_form, kernel, similarity_routing
from capslib.training import seeded

torch.set_num_threads(threads)  # small cells: more threads would wait for each other
plots.use_style()
MISTAKE, RELEASED = plots.ROLE_COLORS["mistake"], plots.ROLE_COLORS["released"]
SIMILARITY = plots.routing_color("similarity")

# %% [markdown]
# ## The discovery
#
# In capsule networks a parent weighs its children's votes by how well they agree. Dynamic routing (routing by agreement, RBA) and EM routing fix in advance what agreement is.
# Faria {cite:p}`faria2019` lets the network learn it, in two ways: as a kernel between votes, and as an LSTM that reads them.
#
# The first way has a catch at its start. Similarity routing prefers a near vote to a far one only as far as its kernel $k$ falls over the distances of votes. Two weights hold that back:
# of two equally active children, the near one has $\exp((k_\text{near} - k_\text{far}) / (\lambda_1 + \lambda_2))$ times the coupling of the far one. [The method](#the-method) defines these symbols.
#
# Two starts weigh near and far votes almost alike. As released, widths are about 0.1: in the first layer and in the class layer votes lie too far away for them, and most kernels are almost zero.
# In the second layer, where votes lie closer, fewer are. With widths from 0.5 to 4 every vote is near. Both have $\lambda_1$ near 12, which alone keeps the ratio below 1.1.
# A third start has widths from 0.1 to 1, $\lambda_1$ near 1, and a steeper activation ($\theta_1 = 10$, $\theta_2 = -5$).
#
# At the paper's size the arms of this chapter start as released; at cpu scale, where the budget is small, they start from the third. The other starts run as [variants](#where-released-code-and-paper-differ), at the rate that the pilot chose for the steep one.
# On MNIST at cpu scale the steep start errs on {measured}`errors:mnist/similarity:test_error`, the released one on {measured}`variants:mnist/similarity/released_start:test_error`, and the wide one on {measured}`variants:mnist/similarity/wide_kernels:test_error`.
# No network learns from these two: each is right on fewer than nine of ten training images. From the steep start training drives $\lambda_1$ nearly to zero, from the other two it does not.
# The starts differ in widths, in $\lambda_1$ and in $\theta$ at once, so we cannot say which matters.

# %% mystnb={"figure": {"caption": "How much less does a far vote count than a near one? Coupling of a vote over its distance from the mean, relative to that of a vote at the left edge of the shade, for three starts; a line for each parent of the class layer. Shaded: the middle nine tenths of the distances in a new network of the paper's size, on noise.", "name": "fig-lr-start"}, "image": {"alt": "The coupling of a vote over its distance from the mean, relative to that of a near vote, for three starts, with the distances that votes have in a new network shaded. From the first two starts it hardly falls across that range, from the steep one it falls by a sixth."}} tags=["hide-input"]
STARTS = {"released": "released", "spread": "0.5 to 4", "steep": "0.1 to 1"}
sights = {preset: start.sight(preset) for preset in STARTS}
near, far = sights["released"]["classes"][:2]
distances = torch.linspace(0, 1.5, 200)


@torch.no_grad()
def relative_couplings(preset: str) -> torch.Tensor:
    """Return the coupling over the distance, relative to that of a near vote, [5, 200]."""
    with seeded(1):
        routing = make_routing("similarity", 5, 16, kernels=10, start=preset)
    shape = torch.zeros(1, 5), routing.mixture, routing.width()
    rise = kernel(distances.expand(1, 5, -1), *shape)
    rise -= kernel(torch.full((1, 5, 1), near), *shape)
    return (rise / routing.weights.abs().sum(dim=1, keepdim=True)).exp()


figure, axes = plots.panels(3, height=2.0, sharey=True)
for axis, (preset, widths) in zip(axes, STARTS.items(), strict=True):
    axis.axvspan(near, far, color=plots.INK, alpha=0.12, lw=0)
    axis.plot(distances, relative_couplings(preset).T, color=SIMILARITY, lw=1)
    axis.set(title=widths, xlabel="distance")
axes[0].set_ylabel("relative coupling")
plt.show()

# %% [markdown]
# The table divides the coupling of a near vote by that of a far one: a twentieth of the votes lie nearer, and a twentieth farther. In brackets is the share of votes whose kernel is below 0.1.
# With the released $\lambda_1 = 12$ and $\lambda_2 = 1$ the ratio cannot pass $e^{1/13} \approx 1.08$, whatever the widths.

# %% tags=["hide-input"]
rows = {}
for preset, widths in STARTS.items():
    sight = sights[preset].values()
    rows[widths] = [f"{layer.ratio:.2f} ({100 * layer.blind:.0f} %)" for layer in sight]
frames.table(rows, list(PLACES.values()))

# %% [markdown]
# ## The idea on a toy (Figure 2)
#
# One parent, two clusters of votes: a dense one whose children are hardly active, and a loose one of active children. Two weights limit how far the couplings may gather on agreeing votes. $\lambda_1$ pulls them towards
# equal shares, $\lambda_2$ towards the activations. Drag both to the left end (0.01), then to the right end (100).

# %% mystnb={"code_prompt_hide": "Code of the toy", "code_prompt_show": "Code of the toy"} tags=["hide-input"]
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
<svg role="img" aria-label="Votes as discs whose areas are their couplings; a cross marks the mean."></svg>
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
const discs = data.v.map(v => make('circle', {cx: v[0], cy: -v[1], fill: data.color, 'fill-opacity': 0.55}));
data.v.forEach(v => make('circle', {cx: v[0], cy: -v[1], r: 0.025, fill: data.ink}));
const cross = make('path', {d: 'M-.12 0H.12M0-.12V.12', stroke: data.ink, 'stroke-width': 0.05});
const draw = () => {
  const l = [...sliders].map(s => 10 ** s.value); l.forEach((x, k) => outs[k].textContent = x.toPrecision(2));
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
points, activation, _, width = toy.clusters(0)
toy_data = {
    "v": points[:, 0].round(decimals=3).tolist(),
    "a": activation.round(decimals=3).tolist(),
    "w": width[0].tolist(),
    "dense": toy.DENSE,
    "ink": plots.INK,
    "color": SIMILARITY,
}
plots.widget(WIDGET, toy_data)

# %% mystnb={"figure": {"caption": "What do the two weights do? Areas are couplings after ten iterations, crosses the means. A large first weight gives equal shares, a large second one shares like the activations, small weights the dense cluster, and very small ones a few votes next to the mean.", "name": "fig-lr-toy"}, "image": {"alt": "Four panels of votes as discs whose areas are couplings. With a large first weight all are equal; with a large second one those of the loose, active cluster are larger; with small weights the dense cluster has nearly all; with very small ones a few votes near the mean have."}} tags=["hide-input"]
PAIRS = ((100.0, 0.1), (0.1, 100.0), (0.1, 0.1), (0.01, 0.01))
x, y = points[:, 0].T
figure, axes = plots.panels(4, height=1.9, sharex=True, sharey=True)
for axis, (lambda1, lambda2) in zip(axes, PAIRS, strict=True):
    coupling = toy.couplings(0, lambda1, lambda2, iterations=10)
    axis.scatter(x, y, s=900 * coupling, alpha=0.55, color=SIMILARITY, lw=0)
    axis.scatter(x, y, s=2, color=plots.INK)
    axis.plot(coupling @ x, coupling @ y, "+", color=plots.INK, ms=11, mew=2.2)
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"λ₁ = {lambda1:g}, λ₂ = {lambda2:g}", fontsize=9.5)
plt.show()

# %%
toys = session.run(STEM, "toys")

# %% tags=["hide-input"]
chapter.table("LR-W-3")

# %% [markdown]
# In every draw the couplings in closed form are those that projected gradient finds. With a quadratic kernel the disagreement never rises, but for rounding.
# The last panel is a limit that the paper does not draw. At weights as small as 0.01 only a few votes of the dense cluster keep couplings. In some draws one or two scattered votes that lie next to the first mean take most instead.
# {claim}`LR-W-3` asks for weights from 3 down to 0.1; below that, its last two parts fail in some draws.
#
# ## The method
#
# The formulas of the paper are missing in the text that this chapter was written from; they were rebuilt from its words and from the released code {cite:p}`faria2019code`. The table gives our confidence in each.
#
# | formula | rebuilt from | confidence |
# |---|---|---|
# | the loop (Algorithm 1), couplings over children | released code | high |
# | votes, eq. 1 | released code | high |
# | what is minimised and under which constraints, eqs. 2 and 3 | words, and the closed form in the code | high for couplings |
# | mean, eq. 4 | released code | high, but it minimises only for a quadratic kernel |
# | Lagrange function and its derivatives, eqs. 5 to 10 | worked out from eq. 2 | high |
# | couplings, eqs. 11 and 12 | released code | high |
# | activation, eq. 13 | released code; five quantities named in the text | medium to high |
# | kernel, eq. 15 | released code | high |
# | LSTM and perceptrons (Algorithm 2), eq. 14 | released code, text | high |
#
# ### One loop
#
# For each parent $j$ the couplings of its $n$ children sum to one, and parents do not compete. That is the opposite axis to RBA and EM routing. The first mean is that of equal couplings; activations of children enter
# through the couplings that follow.
#
# ```{live-source} capslib.routing.consensus.consensus
# :test: tests/routing/conformance.py::it_is_what_the_plain_loops_say
# ```
#
# Votes are $V_{ij} = W_{ij} M_i / \lVert W_{ij} \rVert_F$, with $W$ on the left.
#
# ```{live-source} capslib.layers.bounded
# :test: tests/routing/test_consensus.py::test_a_bounded_layer_transforms_from_the_left_and_lengthens_no_pose
# ```
#
# ### Similarity routing
#
# For a given mean, couplings minimise a disagreement (confidence: high). Its last two terms are Kullback–Leibler divergences, up to a constant:
#
# ```{math}
# :label: eq-lr-objective
# \begin{aligned}
# J(c, \mu) = &-\sum_i c_i\, k(\mu, v_i) + \lambda_1 \sum_i c_i \ln (n\, c_i) \\
# &+ \lambda_2 \sum_i c_i \ln \frac{c_i}{a_i}, \qquad \sum_i c_i = 1 .
# \end{aligned}
# ```
#
# With a Lagrange multiplier $\eta$ for the sum, $-k_i + \lambda_1 (1 + \ln n c_i) + \lambda_2 (1 + \ln (c_i / a_i)) + \eta = 0$, and so the couplings have a closed form (high). The activation has three weights of its own (medium
# to high). The code adds 0.1 to the activations before the logarithm in the couplings, so these minimise $J$ for $a_i + 0.1$; we do so in the activation, too:
#
# ```{math}
# :label: eq-lr-closed
# \begin{aligned}
# c_i &= \operatorname{softmax}_i \frac{k(\mu, v_i) + \lambda_2 \ln (a_i + 0.1)}{\lambda_1 + \lambda_2}, \\
# a &= \sigma\Bigl(\theta_1 \sum_i c_i\, k(\mu, v_i) + |\theta_3| \sum_i c_i \ln (a_i + 0.1) + \theta_2\Bigr) .
# \end{aligned}
# ```
#
# The mean $\mu = \sum_i c_i v_i$ minimises $J$ if $k = -\tfrac12 \lVert \mu - v \rVert^2$. For the kernel of the paper it is an approximation. Li et al. {cite:p}`li2008` weigh by distances and one entropy. Wang and Liu
# {cite:p}`wang2018` have inner products, one divergence, and couplings over the parents. Faria has a kernel, a second divergence, and couplings over the children.
#
# The kernel (high) is a mixture of $Q$ Gaussians, $k(\mu, v) = \sum_q \operatorname{softmax}(w)_q \exp(-\lVert \mu - v \rVert^2 / 2 \ell_q^2)$.
#
# ```{live-source} capslib.routing.consensus.kernel
# :test: tests/routing/test_consensus.py::test_every_start_is_what_the_plain_loops_say
# ```
#
# ```{live-source} capslib.routing.consensus.closed_form
# :test: tests/papers/test_learned_routing.py::test_the_closed_form_is_what_projected_gradient_finds
# ```
#
# ```{fold} The lines that put both together, and the activation of eq. 13
# ```
#
# ```{live-source} capslib.routing.consensus.similarity_routing
# :given: bias=None logistic=True
# :test: tests/papers/test_learned_routing.py::test_the_activation_is_that_of_equation_13
# ```
#
# ### Connectionist routing
#
# For every child and parent, an LSTM with 16 units reads $[\mu, a_i, v_i, c_i]$; a perceptron $g$ turns its hidden state into the logit of the coupling, and a perceptron $f$ turns $\sum_i c_i s_i$ of its cell states
# into the activation (high). In the released code the states are swapped: TensorFlow's cell returns (cell, hidden), and
# [the first](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/ace32c683b6d393edd0b7175a272a8bf65b57680/models/coreimp/rnnRouting.py#L71-L75) goes to $g$ and
# [the second](https://github.com/Goncalo-Faria/learning-inner-consensus/blob/ace32c683b6d393edd0b7175a272a8bf65b57680/models/coreimp/rnnRouting.py#L114-L116) to $f$. Here the paper's reading is the default, the code's an option.
#
# ```{fold} The lines that compute it
# ```
#
# ```{live-source} capslib.routing.consensus.connectionist_routing
# :given: bias=None logistic=True
# :test: tests/routing/test_consensus.py::test_the_lstm_is_that_of_torch
# ```
#
# ### The network

# %% mystnb={"figure": {"caption": "What does an image pass? The network of Table 1 for smallNORB, with the shapes of its layers. Each capsule has a pose of 4 by 4 and an activation; any routing can stand where an arrow says so.", "name": "fig-lr-network"}, "image": {"alt": "The network from left to right: an image of 32 by 32 pixels, a convolution, primary capsules, two layers of conv capsules, and class capsules, with the shape of each."}} tags=["hide-input"]
network = ConsensusCapsNet((1, 32, 32), routing="connectionist").eval()
image = torch.zeros(1, 1, 32, 32)
with torch.no_grad():
    filters, *grid = network.conv(image).shape[1:]
    pose, activation = network.primary_capsules(image)
    sizes = [(32, 32), (*grid, filters), activation.shape[1:]]
    for layer in (network.capsules1, network.capsules2, network.classes):
        pose, activation, _ = layer(pose, activation)
        sizes.append(activation.shape[1:])
names = ["image", "feature maps", "primary capsules", *["conv capsules"] * 2, "class capsules"]
first, second, *routed = [f"{k}×{k}, stride {stride}" for k, stride in network.WINDOWS]
leads = [first, second, *(f"routing,\n{window}" for window in routed), "routing", ""]
shapes = [" × ".join(map(str, size)) for size in sizes]
plots.network(list(zip(names, shapes, leads, strict=True)), plots.INK)
plt.show()

# %% [markdown]
# ```{fold} The network in fifteen lines, one training step, and a learning curve
# ```


# %%
class SmallConsensusCapsNet(torch.nn.Module):
    """The network above with four types a layer, for images of 17 × 17 pixels."""

    def __init__(self, classes: int = 10, **routing: object):
        super().__init__()
        shared = {"coordinates": True, **routing}
        self.conv = torch.nn.Conv2d(1, 16, 5, stride=2)
        self.primary = MatrixPrimaryCapsules(16, 4)
        self.capsules1 = ConvCapsules(4, 4, kernel=3, stride=2, transform="bounded", **shared)
        self.capsules2 = ConvCapsules(4, 4, kernel=3, stride=1, transform="bounded", **shared)
        self.classes = FlatCapsules(4, classes, **shared)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pose, activation = self.primary(self.conv(images).relu())
        for layer in (self.capsules1, self.capsules2, self.classes):
            pose, activation, _ = layer(pose, activation)
        return activation  # [N, classes]


# %%
STEPS = 120
digits = load("digits", "train", data_dir=session.settings.data_dir)
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
        loss = spread_loss(network(images[batch]), labels[batch], margin=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


curves = {
    "connectionist": losses("connectionist"),
    "similarity": losses("similarity", start="steep"),
}

# %% mystnb={"figure": {"caption": "Do both routings learn? Spread loss of each batch of 16 stand-in digits, one seed, margin 0.5; both with the same batches and rate.", "name": "fig-lr-small"}, "image": {"alt": "Spread loss of each batch over 120 training steps of the small network. With the LSTM and with the kernel it stays where it starts for some fifty steps and then falls."}} tags=["hide-input"]
figure, axis = plt.subplots(figsize=(plots.WIDTH, 2.2))
colors = {}
for routing, curve in curves.items():
    colors[NAMES[routing]] = plots.routing_color(routing)
    axis.plot(range(1, STEPS + 1), curve, color=plots.routing_color(routing), lw=1.2)
plots.key(axis, colors)
axis.set(xlabel="step", ylabel="spread loss", ylim=(0, None))
plt.show()

# %% [markdown]
# The network of the experiments, with all its options, and what its routings add to its parameters:
#
# ```{live-source} capslib.networks.learned_routing.ConsensusCapsNet
# :test: tests/papers/test_learned_routing.py::test_the_network_has_the_parameters_of_table_1
# ```

# %% tags=["hide-input"]
sizes = {}
for routing, name in NAMES.items():
    network = ConsensusCapsNet((1, 32, 32), routing=routing)
    parameters = sum(p.numel() for p in network.parameters())
    sizes[name] = (parameters - network.of_routing(), network.of_routing())
display(frames.table(sizes, ["parameters without routing", "of routing"]))
chapter.table("LR-X-params")

# %% [markdown]
# ## Experiments
#
# ### Table 3: four routings in one network
#
# Does a learned routing err less than EM routing, and less than *itself without learning*? The paper compares with numbers that others measured in other networks.
# Here the network around the routing is the same, and the two routings that learn also run frozen as they start. The LSTM brings by far the most parameters of its own ([costs](#what-does-each-routing-cost)).
# The frozen arms were to show what training adds, but at cpu scale no frozen network learns. We tried all arms with the same two learning rates, on training images that were held out.
# At the paper's size both learned routings also see stereo pairs, because the {theirs}`LR-T3-emorig-norb` of {claim}`LR-W-2` is an error of pairs.

# %%
errors = session.run(STEM, "errors")
pilot = session.run(STEM, "pilot")

# %% tags=["hide-input"]
chapter.table("LR-W-1", "LR-W-2", "LR-T3-")

# %% [markdown]
# The text says that the LSTM equals or beats the open implementations of EM routing, and that the kernel does not. The paper's own table is less clear.
# On smallNORB the LSTM's {theirs}`LR-T3-conn-norb` are more than the {theirs}`LR-T3-em24-norb` of Gritzman's EM routing. The kernel's {theirs}`LR-T3-sim-norb` are no more than the {theirs}`LR-T3-emwww-norb` of the other implementation.

# %% mystnb={"figure": {"caption": "Which routing errs least? Test error, one dot a seed; open: the same routing frozen as it starts. Scale and seeds stand above the panels.", "name": "fig-lr-errors"}, "image": {"alt": "Test errors of the LSTM, the kernel, EM routing and RBA on two sets. On MNIST the LSTM errs on {measured}`errors:mnist/connectionist:test_error`, the kernel on {measured}`errors:mnist/similarity:test_error`, EM routing on {measured}`errors:mnist/em:test_error` and RBA on {measured}`errors:mnist/dynamic:test_error`; frozen, the LSTM errs on {measured}`errors:mnist/connectionist/frozen:test_error`."}} tags=["hide-input"]
error_records = frames.best([*committed, *errors], "errors", views="separate")
sets = list(dict.fromkeys(record.config["data"] for record in error_records))
figure, axes = plots.panels(len(sets), height=2.4, squeeze=False)
for axis, data in zip(axes[0], sets, strict=True):
    records = frames.select(error_records, "errors", data=data)
    for (x, routing), trained in itertools.product(enumerate(NAMES), (True, False)):
        errors_by_seed = shown.by_seed(records, routing=routing, trained=trained).values()
        color = plots.routing_color(routing)
        look = dict(s=34, edgecolor=color, facecolor=color if trained else "none")
        axis.scatter([x if trained else x + 0.25] * len(errors_by_seed), errors_by_seed, **look)
    title = f"{shown.SETS.get(data, data)}, {frames.shown_are(records)}"
    axis.set_title(title, fontsize=10)
    axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
    axis.set_xticks(range(len(NAMES)), NAMES.values())
    axis.set_xlim(-0.5, len(NAMES) - 0.5)
axes[0, 0].set_ylabel("test error (%)")
plt.show()

# %% [markdown]
# A network has learned if it is right on at least nine of ten training images. Comparisons with the others decide nothing. The last column of the table counts those that have.
# On MNIST the LSTM errs on {measured}`errors:mnist/connectionist:test_error` and EM routing on {measured}`errors:mnist/em:test_error`. Their difference, {measured}`errors:mnist/connectionist - mnist/em:test_error`, has the 95 % interval {interval}`errors:mnist/connectionist - mnist/em:test_error`, so three seeds leave the order open.
# On smallNORB, a copy that had been compressed as JPEG, EM routing errs on {measured}`errors:smallnorb/em:test_error`, and no network learns.

# %% tags=["hide-input"]
rows = {}
for data, routing, trained in itertools.product(sets, NAMES, (True, False)):
    arm = dict(data=data, routing=routing, trained=trained)
    records = frames.select(error_records, "errors", **arm)
    if records:
        label = NAMES[routing] if trained else f"{NAMES[routing]}, frozen"
        error = frames.mean(frames.values(records, "test_error"))
        learned = len(shown.learned(records))
        rows[shown.SETS.get(data, data), label] = [error, len(records), learned]
frames.table(rows, ["test error (%)", "seeds", "that learned"], "set", "routing")

# %% [markdown]
# With a frozen routing no reduced network learns, so what training the routing brings is open. Frozen, the LSTM gives all children of a parent nearly the same weight.
# Its perceptron $f$, which makes the activations, is frozen too. No run freezes the weights of votes alone, or $f$ alone.

# %% [markdown]
# ```{fold} Held-out errors of the pilot, and the configuration of each scale
# ```
#
# Errors in percent on training images that were held out, for one seed, after a part of the steps of Table 3. ✓: the rate that the arm has in Table 3 at this scale; where two errors lie close, one seed cannot tell them apart.
# Guessing errs on nine of ten digits and on four of five toys.

# %% tags=["hide-input"]
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
    share = f"{100 * shares[data]:.0f}"
    rows[data, name] = [*(texts.get(rate, "") for rate in rates), share]
columns = [*(f"rate {rate:g}" for rate in rates), "part of the steps (%)"]
display(frames.table(rows, columns, "set", "routing"))
more = {}
for size in ("cpu", "paper"):
    more[f"{size}, MNIST"] = EXPERIMENTS["errors"].at(size)["mnist/connectionist"]
hidden = ("learning_rate", "network", "downsample")
table = frames.configuration(EXPERIMENTS["errors"], hidden, more, shown=MNIST)
frames.styled(table)

# %% [markdown]
# ### What the couplings have learned
#
# Does a parent listen to votes that lie near their mean, or to active children? We sort the children of each parent into ten equal groups, by the distance of their votes from the mean, and again by their activations.
# Equal weights give 1 in every group. The weight of a vote is what it has in the mean: its coupling, and with EM routing its coupling times the activation of the child.

# %% mystnb={"figure": {"caption": "What do weights of votes follow? Weights times the number of children in the last iteration, by the rank of the distance and of the activation, least to largest, for both sets and three layers; a line for each trained network of Table 3, cpu scale, three seeds. Dotted: equal weights.", "name": "fig-lr-follow"}, "image": {"alt": "Weights of votes by tenths of the children, a line for each network. A curve that falls from left to right in a row by distance listens to near votes; one that rises in a row by activation, to active children; a level one at 1, to all alike."}} tags=["hide-input"]
trained_records = frames.select(error_records, "errors", trained=True)
trained_records.sort(key=lambda record: record.trial.seed)
DASHES = dict(
    connectionist="-",
    similarity=(0, (6, 1.5)),
    em=(0, (3, 1, 1, 1)),
    dynamic=(0, (5, 1, 1, 1, 1, 1)),
)
ORDERS = ("distance", "activation")


def draw_weights(axis: plt.Axes, records: list, curve: str, iteration: int) -> None:
    """Draw the weights of votes in an iteration, a line for each network."""
    for record in records:
        routing = record.config["routing"]
        weights = record.series[f"{curve}_{iteration}"]
        look = dict(color=plots.routing_color(routing), ls=DASHES[routing])
        ranks = torch.linspace(0, 1, len(weights))
        axis.plot(ranks, weights, lw=0.45 * iteration, label=NAMES[routing], **look)


def draw_all_weights(records: list, iterations: tuple[int, ...]) -> None:
    """Draw the weights of votes by set, order and layer, the later an iteration the thicker."""
    figure, axes = plots.panels(3, rows=2 * len(sets), height=1.35, sharey="row")
    panels = itertools.product(sets, ORDERS, PLACES)
    for axis, (data, order, layer) in zip(axes.flat, panels, strict=True):
        networks = frames.select(records, "errors", data=data)
        for iteration in iterations:
            draw_weights(axis, networks, f"by_{order}_{layer}", iteration)
        axis.axhline(1, color=plots.INK, ls=":", lw=1)
        axis.set_xticks([0, 1], ["least", "most"])
    for axis, place in zip(axes[0], PLACES.values(), strict=True):
        axis.set_title(place, fontsize=9)
    for axis, (data, order) in zip(axes[:, 0], itertools.product(sets, ORDERS), strict=True):
        axis.set_ylabel(f"{shown.SETS.get(data, data)}\nby {order}", fontsize=8)
    figure.supylabel("weight × number of children", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    ordered = [by_label[name] for name in NAMES.values() if name in by_label]
    figure.legend(handles=ordered, loc="outside lower center", ncols=4)
    plt.show()


draw_all_weights(trained_records, iterations=(3,))

# %% [markdown]
# With the LSTM the *least* active tenth of the children of the first layer outweighs the most active one in nearly all networks. It does so in neither of the two that trained for twice as long, nor in any network with the kernel. No run tells why.
# Near votes outweigh far ones with the LSTM, the kernel and EM routing in nearly all networks and layers.
#
# ```{fold} Each iteration, how evenly votes are weighed, and what the kernel has learned
# ```

# %% mystnb={"figure": {"caption": "How do weights change over the iterations? As above, for the first seed; the thicker a line, the later its iteration.", "name": "fig-lr-iterations"}, "image": {"alt": "The same weights of votes in each of three iterations of one network: thin lines for the first iteration, thick ones for the last."}} tags=["hide-input"]
seed = min(record.trial.seed for record in trained_records)
first_networks = [record for record in trained_records if record.trial.seed == seed]
draw_all_weights(first_networks, iterations=(1, 2, 3))

# %% [markdown]
# In how many networks one tenth of the children outweighs another:

# %% tags=["hide-input"]
headings = {"distance": "nearest over farthest", "activation": "least over most active"}
columns = []
rows = {name: [] for name in NAMES.values()}
for order, layer in itertools.product(ORDERS, PLACES):
    columns.append(f"{headings[order]}, {PLACES[layer]}")
    for routing, name in NAMES.items():
        outweighs = shown.prefers_least(trained_records, routing, order, layer)
        rows[name].append(f"{sum(outweighs)} of {len(outweighs)}")
frames.table(rows, columns)

# %% [markdown]
# How many votes with equal weights would have the same entropy, as a share of the children, in the last iteration (1: all weights are equal). Then, of similarity routing, the median and the range over parents, kernels and seeds:

# %% tags=["hide-input"]
records = sorted(error_records, key=lambda record: (record.config["data"], shown.place(record)))
measures = frames.metrics(records).replace({"routing": NAMES, "data": shown.SETS})
measures["state"] = measures["trained"].map({True: "trained", False: "frozen"})
columns = {f"even_{layer}_3": place for layer, place in PLACES.items()}
table = frames.means(measures, ["data", "routing", "state"], columns, 2, (0, 1))
display(table.pipe(frames.styled))


def median_and_range(values: list[float]) -> str:
    """Return ``0.10 (0.08…0.12)``."""
    text = f"{statistics.median(values):z.2f} ({min(values):z.2f}…{max(values):z.2f})"
    return text.replace("-", "−")


rows = {}
for arm, values in shown.values_of_the_kernel(error_records).items():
    rows[arm] = [median_and_range(numbers) for numbers in values]
frames.table(rows, list(shown.VALUES.values()), "set", "layer", "")

# %% [markdown]
# ## Deviations
#
# These matter most; the start of similarity routing differs from the release at cpu scale alone.

# %% tags=["hide-input"]
deviations = frames.deviations([*pilot_records, *error_records])
deviations = deviations.replace({"True": "yes", "False": "no"})
deviations = deviations[deviations["scale"] != "smoke"]
MATTER = ("filters and capsule types", "start of similarity routing", "loss", "EM routing")
matters = deviations["what"].isin(MATTER)
deviations[matters].pipe(frames.styled)

# %% [markdown]
# ```{fold} All deviations of the trained networks on this page
# ```

# %% tags=["hide-input"]
deviations[~matters].pipe(frames.styled)

# %% [markdown]
# ## Pitfalls
#
# ### The softmax over the wrong axis
#
# The softmax runs over the *children*. Over the parents it is silently another algorithm: the single parent of the toy then takes all of every vote, whatever the weights. `couplings_sum_to_one` holds each routing to the axis
# that it declares.
#
# ```{fold} The mistake as a switch, and its symptom
# ```


# %%
def dense_share(weight: float, over: str) -> float:
    """Return the share of the dense cluster of the toy when both weights have this value."""
    votes, activation, mixture, width = toy.clusters(0)
    weights = torch.tensor([weight, weight]).double()
    axis = {"children": -1, "parents": -2}[over]
    mu = votes.mean(dim=0)[0]
    for _ in range(10):
        k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)  # [parents, children]
        coupling = closed_form(k, activation.log(), *weights).softmax(dim=axis)[0]
        mu = coupling @ votes[:, 0] / coupling.sum()
    return float(coupling[: toy.DENSE].sum() / coupling.sum())


# %% mystnb={"figure": {"caption": "Do the weights of similarity routing do anything? Share of the couplings that the dense cluster has, when both weights have the same value. Dotted: its share of the votes.", "name": "fig-lr-axis"}, "image": {"alt": "Share of the dense cluster over the weights. With the softmax over children it rises from below its share of the votes to nearly one as the weights fall. With the softmax over parents it is the same for all weights."}} tags=["hide-input"]
weights = torch.logspace(-1, 2, 40).tolist()
figure, axis = plt.subplots(figsize=(plots.WIDTH, 2.2))
axis.axhline(toy.DENSE / (toy.DENSE + toy.LOOSE), color=plots.INK, lw=1, ls=":")
for over, color in (("parents", MISTAKE), ("children", SIMILARITY)):
    axis.plot(weights, [dense_share(weight, over) for weight in weights], color=color)
plots.key(axis, {"over children": SIMILARITY, "over parents": MISTAKE})
axis.set(xscale="log", xlabel="λ₁ = λ₂", ylabel="share", ylim=(0, 1.03))
plt.show()

# %% [markdown]
# ### A logarithm without a floor
#
# Both the couplings and the activation take the logarithm of the children's activations. Without a floor the logit has no bound as these go to zero. The floor is 0.1, as in eq. 11 of the release. `values_and_gradients_are_finite` of
# the conformance suite routes inactive children.
#
# ```{fold} The mistake as a switch, and its symptom
# ```

# %% mystnb={"figure": {"caption": "What do hardly active children do to a parent? Ten children with equal activation; logit of one parent and its largest gradient by an activation. Weights of the released start, with a third theta of 1.", "name": "fig-lr-floor"}, "image": {"alt": "Left: logit of a parent over the activation of its children. With the floor it levels off, without one it keeps falling. Right: its largest gradient, which without a floor grows without bound as the activation falls."}} tags=["hide-input"]
activations = torch.logspace(-8, 0, 33)
children = activations[:, None].repeat(1, 10).requires_grad_()
with seeded(0):
    votes = torch.randn(10, 1, 16).expand(33, -1, -1, -1)
    routing = make_routing("similarity", 1, 16, start="released")
shape = routing.mixture, routing.width(), routing.weights, torch.tensor([[0.0, 1.0, 1.0]])
figure, (logit_axis, gradient_axis) = plots.panels(2, height=2.3)
for floor, color in ((0.1, SIMILARITY), (0.0, MISTAKE)):
    options = dict(floor=floor, logistic=False)
    logits = similarity_routing(votes, children, *shape, **options).activation
    (gradient,) = torch.autograd.grad(logits.sum(), children)
    logit_axis.plot(activations, logits.detach(), color=color)
    gradient_axis.plot(activations, gradient.abs().amax(dim=1), color=color)
plots.key(gradient_axis, {"floor 0.1": SIMILARITY, "no floor": MISTAKE})
for axis, name in ((logit_axis, "logit"), (gradient_axis, "gradient")):
    axis.set(xscale="log", xlabel="activation of the children", ylabel=name)
    axis.set_xticks([1e-8, 1e-4, 1])
gradient_axis.set_yscale("log")
plt.show()

# %% [markdown]
# ### A threshold for each column
#
# The release stores $\theta$ along an axis of the grid, so it belongs to columns of the image and not to channels. Capsules of one type that see the same then differ by their place.
# `test_theta_of_columns_belongs_to_the_columns_of_a_grid` holds what the option does; a [variant](#where-released-code-and-paper-differ) trains with it.
#
# ```{fold} The mistake as a switch, and its symptom
# ```

# %% mystnb={"figure": {"caption": "Does a capsule act the same everywhere? Activation of one type in six columns whose children and votes are all alike, in a new routing with the released start. The axis shows a small range.", "name": "fig-lr-columns"}, "image": {"alt": "Activation of one type of parent in six columns whose children are all alike. With theta by type it is the same everywhere, with theta by column it differs from column to column."}} tags=["hide-input"]
with seeded(1):
    votes = torch.randn(1, 18, 1, 16).expand(6, -1, -1, -1)
    activation = torch.rand(18).expand(6, -1)
figure, axis = plt.subplots(figsize=(plots.WIDTH, 2.2))
for columns, color in ((None, SIMILARITY), (6, RELEASED)):
    with seeded(0), torch.no_grad():
        routing = make_routing("similarity", 1, 16, start="released", columns=columns)
        parents = routing(votes, activation)
    axis.plot(range(1, 7), parents.activation[:, 0], "o-", color=color)
plots.key(axis, {"θ of the type": SIMILARITY, "θ of the column, as released": RELEASED})
axis.set(xlabel="column", ylabel="activation")
plt.show()

# %% [markdown]
# ### Two references that mislead
#
# Table 3 quotes EM errors of others. On smallNORB the {theirs}`LR-T3-emorig-norb` of the original authors is for stereo pairs and the other two are for single images: they do not compare. No test can catch this.
# The release has EM routing of its own. It uses $\sigma^2$ with a factor of two, and by the author's own comment its normaliser is wrong. Ours agrees with the plain loops of its paper
# (`it_is_what_the_plain_loops_say`). We found no public reproduction of this paper, and so no second reading of its formulas.
#
# ## Beyond the paper
#
# ### Can these routings tell votes from their negatives?
#
# Peer et al. {cite:p}`peer2021` prove that RBA and EM routing without a bias cannot. A kernel sees distances only, so similarity routing cannot either; an LSTM reads the votes themselves, and can. The table routes random votes $v$ and
# then $-v$ in a single layer. Two zeros say that a routing cannot tell them apart. A bias moves the poses of all; the activations of EM routing still stay the same. In the whole network the symmetry is lost before any routing:
# features and primary poses pass a ReLU, and coordinates are added.
#
# A *new* network hardly sees its image: its class poses move as little from an image of noise to its negative as to another image. With raw poses and no coordinates they move far more, and again as far to both.
# So a negative is to a new network what any other image is (`test_a_new_network_hardly_sees_its_images_but_one_with_raw_poses_does`).
#
# ```{fold} The table, for each routing with and without a bias
# ```
#
# The most in all examples of 30 children and 5 parents with 16 dimensions, and in all seeds:

# %%
negation = session.run(STEM, "negation")

# %% tags=["hide-input"]
negation_records = frames.best([*committed, *negation], "negation")
rows = {}
for name, values in shown.negation(negation_records).items():
    rows[name] = [raised(f"{value:.2g}") for value in values]
columns = ["poses of v plus those of −v, in mean lengths", "change of activations"]
frames.table(rows, columns)

# %% [markdown]
# ### What does each routing cost?
#
# The table gives parameters, operations and memory, and the time of a step in steps of EM routing in the same network: with both on the same path, and as a training runs. A long training compiles EM routing and RBA, which have a core of their own; the LSTM and the kernel have none.
# At the paper's size a training step with the LSTM takes {measured}`costs@paper:connectionist:times_em_in_training` times as long as with EM routing, and one with the kernel {measured}`costs@paper:similarity:times_em_in_training` times.
# The paper gives hours on a card ({claim}`LR-X-hours`); [our core-hours](#run-it-yourself) stand below.
#
# Operations are those of a training step in products and convolutions, for each image; the kernel routes without products, so none of its routing is counted. *Kept* is what stays in memory for the gradient: by the definition, and on the fast path, which routes a part once more.
# EM routing is timed against itself in a second network, so its own time is near 1.

# %%
costs = session.run(STEM, "costs")

# %% tags=["hide-input"]
cost_records = frames.select(committed, "costs") or costs
COLUMNS = {  # of a metric: its heading, its unit and its decimals
    "parameters_of_routing": ("parameters (1000)", 1e3, 1),
    "flops_of_an_image": ("MFLOP", 1e6, 1),
    "bytes_eager": ("MB kept", 1e6, 1),
    "bytes_fast": ("MB, fast path", 1e6, 1),
    "times_em": ("× EM, same path", 1, 2),
    "times_em_in_training": ("× EM, training", 1, 2),
}
rows = {}
sizes = dict.fromkeys(record.trial.scale for record in cost_records)
for size, routing in itertools.product(sizes, NAMES):
    records = frames.select(cost_records, "costs", size, routing=routing)
    texts = []
    for metric, (_, unit, decimals) in COLUMNS.items():
        mean = statistics.fmean(frames.values(records, metric))
        texts.append(f"{mean / unit:.{decimals}f}")
    rows[size, NAMES[routing]] = texts
headings = [heading for heading, *_ in COLUMNS.values()]
frames.table(rows, headings, "scale", "routing")

# %% [markdown]
# ### Where released code and paper differ
#
# Does it matter for the error? The switches are the start of the kernels, $\theta$ that belongs to columns, the swapped states, primary poses without ReLU and norm, no coordinates, and softmax cross entropy.
# Each differs from an arm of Table 3 in one of them; at cpu scale they run on MNIST.

# %%
variants = session.run(STEM, "variants")

# %% mystnb={"figure": {"caption": "Which difference between code and paper matters? Test error minus that of the same seed in Table 3, in points: left of the line, fewer errors. A small mark is a seed, the large one their mean with its 95 % interval. The titles name set, routing, size and seeds.", "name": "fig-lr-variants"}, "image": {"alt": "Two panels with a row for each change. With the LSTM all marks lie near the line, those of cross entropy left of it. With the kernel the released start, which errs on {measured}`variants:mnist/similarity/released_start:test_error`, and wide kernels, on {measured}`variants:mnist/similarity/wide_kernels:test_error`, lie far right of it in every seed. Raw poses, on {measured}`variants:mnist/similarity/raw_poses:test_error`, lie left of it in every seed."}} tags=["hide-input"]
variant_records = frames.best([*committed, *variants], "variants")
changes = shown.changes(error_records, variant_records)
changed_sets = list(dict.fromkeys(data for data, *_ in changes))
panels = list(itertools.product(changed_sets, shown.LEARNERS))
figure, axes = plots.panels(2, height=2.4, rows=len(changed_sets), squeeze=False)
for axis, (data, routing) in zip(axes.flat, panels, strict=True):
    color = plots.routing_color(routing)
    rows = {}
    for (*place, change), (_, points) in changes.items():
        if place == [data, NAMES[routing]] and change != shown.UNCHANGED:
            rows[change] = (color, None, points, interval(points) or ())
    axis.axvline(0, color=color, lw=1.4)
    plots.rows(axis, rows)
    axis.set_xlabel("test error minus that of Table 3 (points)")
    records = frames.select(variant_records, "variants", routing=routing)
    title = f"{data}, {NAMES[routing]}\n{frames.shown_are(records)}"
    axis.set_title(title, fontsize=9.5)
plt.show()

# %% [markdown]
# No change is decided: where the networks of all three seeds learn, every interval contains zero. Wide kernels lie wholly right of the line, but their networks have not learned. About one interval in twenty leaves zero out by chance.
#
# ```{fold} The figure in numbers
# ```

# %% tags=["hide-input"]
rows = {}
for change, (values, points) in changes.items():
    error, difference = frames.mean(values), frames.mean(points, 1, None)
    rows[change] = [error, len(values), difference, len(points)]
columns = ["test error (%)", "seeds", "more than in Table 3 (points)", "paired seeds"]
frames.table(rows, columns, "set", "routing", "change")

# %% [markdown]
# ## Run it yourself
#
# ```shell
# capslib data fetch mnist smallnorb
# capslib run learned_routing --scale cpu --experiment pilot --seeds 1
# capslib run learned_routing --scale cpu --experiment errors --experiment variants
# capslib run learned_routing --scale paper --device cuda
# ```
#
# A reduced order is decided only if its networks learn and are at rest. *At rest* means that twice the budget moves no arm by more than a tenth, and gives the same decision. {claim}`LR-W-1` needs one seed of each arm that it compares for twice as long, too:
#
# ```shell
# for routing in connectionist similarity em; do
#   capslib run learned_routing --scale cpu --experiment errors --where seed=0 \
#     --where routing=$routing --where trained=true --where data=mnist --set epochs=16
#   capslib run learned_routing --scale cpu --experiment errors --where seed=0 \
#     --where routing=$routing --where trained=true --where data=smallnorb --set epochs=8
# done
# ```
#
# {doc}`/book/rerun` describes the rest and how to send a record.
#
# ```{fold} What the records took
# ```

# %% tags=["hide-input"]
sized_records = frames.select(cost_records, "costs", "paper") or cost_records
paper_arms = EXPERIMENTS["errors"].at("paper").values()
cells = shown.hours_of_table_3(sized_records, paper_arms)
(least, cheapest), (most, dearest) = cells[0], cells[-1]
frames.say(
    f"One seed of the cheapest cell of Table 3 in full, {cheapest}, takes about "
    f"{least:.0f} core-hours, and of the dearest, {dearest}, {most:.0f}."
)
frames.costs([*committed, *errors]).pipe(frames.styled, digits=1)

# %% [markdown]
# ## Exercises
#
# ```{fold} Three exercises with solutions that run
# ```
#
# 1. Let $\lambda_1 = 0$. What are the couplings if all votes are the same?

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
same_votes, prior = torch.ones(5), torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2])
lambda1, lambda2 = torch.tensor(0.0), torch.tensor(0.5)
coupling = closed_form(same_votes, prior.log(), lambda1, lambda2).softmax(0)
[round(share, 3) for share in coupling.tolist()]

# %% [markdown]
# They are the activations, divided by their sum. The floor of 0.1 is left out here.
#
# 2. Let all children be equally active. Show that one vote far away from all others gets a coupling that does not vanish, whatever its distance.

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
# the kernel is zero at the far vote, and never less
k = torch.tensor([1.0, 1.0, 1.0, 0.0])
lambda1, lambda2 = torch.tensor(12.0), torch.tensor(1.0)
coupling = closed_form(k, torch.zeros(4), lambda1, lambda2).softmax(0)
[round(share, 3) for share in coupling.tolist()]

# %% [markdown]
# The kernel is between zero and one, so no logit lies further from another than $1/(\lambda_1 + \lambda_2)$.
#
# 3. How many parameters does the LSTM of a layer have, and how many would it have for vector capsules with 8 dimensions?

# %% mystnb={"code_prompt_hide": "Solution", "code_prompt_show": "Solution"} tags=["hide-cell"]
{dim: 4 * (16 * (2 * dim + 2 + 16) + 16) for dim in (16, 8)}

# %% [markdown]
# ## All claims
#
# ```{fold} The paper's claims with their verdicts, reasons and runs
# ```
#
# ```{claims-table} learned_routing
# ```
