# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which routing should I use?
#
# :::{div} answer
# {answer}`which_routing`
# :::
#
# No paper answers this question: each compares its routing with one or two others, in networks of its own.
# Here the same small network is trained with every routing of the library, on the same images, with the same budget.
# Two yardsticks are trained, too: the same capsules without routing, and a CNN with as many parameters.
#
# A routing weighs the {term}`votes <vote>` of child capsules for a parent, each by a {term}`coupling`.
# {term}`Dynamic routing` favours votes that agree; *over children*, the couplings of a parent sum to one.
# {term}`EM routing` clusters votes; *with vectors*, it passes on the directions of their means, scaled to the activations.
# In {term}`similarity routing` a trained kernel weighs votes, and in {term}`connectionist routing` an LSTM.

# %% tags=["parameters", "remove-cell"]
# smoke: stand-ins, seconds · cpu: real data, the whole study · paper: the same as cpu, for the study is our own
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
from itertools import product
from statistics import fmean

from matplotlib import pyplot as plt

from capslib.lab import frames, plots
from capslib.lab.chapter import Chapter
from capslib.lab.statistics import interval, leaders
from capslib.lab.study import QUESTIONS, Study, label, leader_or_ties, title
from capslib.papers.common import number_of_parameters
from capslib.papers.which_routing import EXPERIMENTS, STEM
from capslib.papers.which_routing.comparison import CNN, UNIFORM, recipe_of
from capslib.registry import ROUTINGS

plots.use_style()
chapter = Chapter(STEM, results_dir)

# %% tags=["remove-cell"]
trained_here = [*session.run(STEM, "comparison"), *session.run(STEM, "viewpoints")]

# %% tags=["remove-cell"]
records = [*chapter.all_records, *trained_here]
study = Study(records)
finished, expected = study.finished, study.expected
if not study.data_sets:
    study = Study(records, "smoke")

# %% tags=["remove-input"]
if finished == expected:
    frames.say(f"All {expected} trainings are done.")
else:
    frames.say(
        f"So far {finished} of {expected} trainings are done. "
        "A network appears below once both learning rates have run with all seeds."
    )
if study.scale == "smoke":
    frames.say("Until then the page shows seconds of training on stand-ins, and no answer.")

# %% [markdown]
# ## Does routing help?
#
# Each network is compared with the same capsules without routing, on each data set, in up to seven tests: the rows of *Which network leads*. It wins if the 95 % interval of the difference, paired by seed, lies above zero. It loses if the interval lies below. Otherwise three seeds leave it undecided (·).

# %% tags=["remove-input"]
tallies, comparisons = study.tallies(), study.standings()
rows = {label(network): list(tally) for network, tally in tallies.items()}
frames.table(rows, ["wins", "loses", "undecided"], "against no routing")

# %% [markdown]
# Between equals, chance alone gives a network one win and one loss in forty comparisons. Its comparisons on one data set share trainings, so chance favours or harms them together.

# %% tags=["remove-input"]
CHANGED = ("shifted by 4 pixels", "turned by 30 degrees", "at three quarters of its size")
wins_on_changed = 0
for (_, question), standings in comparisons.items():
    if question in CHANGED and standings.get(CNN) == "better":
        wins_on_changed += 1
if wins_on_changed:
    frames.say(
        f"Of the {tallies[CNN].better} wins of the CNN, {wins_on_changed} are on images that "
        "are shifted, turned or made smaller, where its padding may help it."
    )

# %% tags=["remove-input"]
left_out = set()
for data, (question, metric) in product(study.data_sets, QUESTIONS.items()):
    for network in study.runs(data, metric).keys() - study.values(data, metric).keys():
        left_out.add(f"{label(network)} on {title(data)} {question}")
if left_out:
    names = "; ".join(sorted(left_out))
    frames.say(
        f"Left out, because a seed errs on more than a tenth of its training images: {names}."
    )

# %% tags=["remove-input"]
time = study.relative_cost(UNIFORM, "seconds_of_step")
if time is not None:
    frames.say(
        "Capsules without routing are `dynamic` with `iterations=1`. "
        f"A training step takes {time:.2f} times as long as with three iterations."
    )

# %% [markdown]
# ```{fold} Every comparison
# ```

# %% tags=["remove-input"]
rows, networks = {}, list(tallies)
SIGNS = {"better": "wins", "worse": "loses", "undecided": "·"}
for (data, question), standings in comparisons.items():
    cells = [
        SIGNS[standings[network]] if network in standings else "" for network in networks
    ]
    rows[title(data), question] = cells
frames.table(rows, map(label, networks), "data", "test images")

# %% [markdown]
# ## Which network leads, and in what
#
# Each cell names the network with the highest mean accuracy, and this mean in percent. After *or* follow networks that three seeds cannot tell from it: the interval of the paired difference contains zero. A network whose seeds scatter may therefore be named, and one with a higher mean not. If all networks or more than three tie, there is no clear leader. A core-second is a second of one CPU core.

# %% tags=["remove-input"]
rows = {}
for condition, metric in QUESTIONS.items():
    cells = [leader_or_ties(study.values(data, metric)) for data in study.data_sets]
    if set(cells) != {frames.MISSING}:
        rows[condition] = cells
frames.table(rows, map(title, study.data_sets), "test images")

# %% [markdown]
# ## What each routing gives, and what it costs
#
# Accuracy is that after equally many steps. Bold is the best of a column, with all that are too close to tell apart. Of two equal means, only one may be bold: the one whose seeds scatter more.
# Time is that of a training step with 64 images, and memory what its forward pass keeps for the gradient; both are relative to dynamic routing. The [path](speed.md) says how a routing was computed: compiled, or *fast* where it could not be compiled when the study began. Similarity routing is compiled today, and several times as fast: its time here, and its losses at equal core-seconds, are those of the slower path.
# A network has trained if its accuracy on training images is at least 90 % after equally many steps. The last column counts its trainings.

# %% tags=["remove-input"]
COSTS = {"time": "seconds_of_step", "memory": "bytes_for_gradient"}
columns = [f"{title(data)} (%)" for data in study.data_sets]
accuracies = [study.values(data, "test_accuracy_at_steps") for data in study.data_sets]
best = [leaders(accuracy) for accuracy in accuracies]
rows, is_best = {}, {}
for network in study.networks:
    cells = []
    for accuracy in accuracies:
        seeds = accuracy.get(network)
        cells.append(f"{fmean(seeds):.1f}" if seeds else frames.MISSING)
    for metric in COSTS.values():
        cost = study.relative_cost(network, metric)
        cells.append(frames.MISSING if cost is None else f"{cost:#.3g}")
    trained, count = study.trained_share(network)
    path = study.path(network) or frames.MISSING
    rows[label(network)] = [*cells, path, f"{trained} of {count}"]
    is_best[label(network)] = [network in names for names in best]
table = frames.table(rows, [*columns, *COSTS, "path", "trained"], "network")
bold = {True: "font-weight: bold", False: ""}
table.apply(lambda row: [bold[cell] for cell in is_best[row.name]], axis=1, subset=columns)


# %% mystnb={"figure": {"caption": "Which network is most accurate? Test accuracy after equally many steps, and after as many core-seconds as dynamic routing takes for them. Small: seeds; large: their mean, with its 95 % interval.", "name": "fig-wr-accuracy"}, "image": {"alt": "Test accuracy of each network, a row of panels for each data set. Highest after equally many steps: {leading}`after equally many steps`. Highest after equally many core-seconds: {leading}`after equally many core-seconds`."}} tags=["hide-input"]
def compare(columns: dict[str, str], sharex: str = "none") -> None:
    """Draw a panel for each data set and each column, which names a metric in percent."""
    shown = {}
    for data in study.data_sets:
        values = [study.values(data, metric) for metric in columns.values()]
        if any(values):
            shown[data] = values
    rows, width = max(1, len(shown)), len(columns)
    _, axes = plots.panels(
        width, height=2.5, rows=rows, squeeze=False, sharex=sharex, sharey=True
    )
    if not shown:
        for axis in axes.flat:
            axis.set_axis_off()
        axes[0, 0].text(0, 0.5, "No network has all its runs yet.")
    for line, (data, values) in zip(axes, shown.items(), strict=False):
        for axis, name, of_metric in zip(line, columns, values, strict=True):
            drawn = {}
            for network in study.networks:
                seeds = of_metric.get(network, [])
                color = plots.routing_color(network)
                ends = interval(seeds, (0, 100)) or ()
                drawn[label(network)] = plots.Row(color, seeds, interval=ends)
            plots.rows(axis, drawn)
            axis.set_title(title(data))
            axis.set_xlabel(name)
    plt.show()


compare(
    {
        "test accuracy, equal steps (%)": "test_accuracy_at_steps",
        "test accuracy, equal core-seconds (%)": "test_accuracy_at_seconds",
    },
    sharex="row",
)

# %% [markdown]
# ## On images that training never saw
#
# Capsules are said to generalise to new positions and poses. The networks train on upright, centred images, without augmentation. Then test images are shifted, turned or made smaller; the mean is over four directions of a shift, and both of a turn.
#
# The CNN has an advantage here. Its convolutions pad an image, and read all of it. Those of the capsules pad nothing, and never read the last three rows and columns, where a shift can push an object. Routings compare fairly with each other.

# %% mystnb={"figure": {"caption": "Which network withstands changes that training never saw? Accuracy on 2,000 test images.", "name": "fig-wr-unseen"}, "image": {"alt": "Accuracy of each network on changed test images, a row of panels for each data set. Highest after a shift by four pixels: {leading}`shifted by 4 pixels`. Highest after a turn by thirty degrees: {leading}`turned by 30 degrees`. Highest at three quarters of the size: {leading}`at three quarters of its size`."}} tags=["hide-input"]
compare(
    {
        "shifted 4 pixels (%)": "shifted_4_accuracy",
        "turned 30° (%)": "rotated_30_accuracy",
        "three quarters (%)": "scaled_75_percent_accuracy",
    }
)

# %% [markdown]
# ## From viewpoints that training never saw
#
# In a second experiment the networks train on smallNORB from six of its 18 azimuths, the directions around a toy. {doc}`EM routing <papers/em_routing>` asks this of its paper's networks.

# %% mystnb={"figure": {"caption": "Which network recognises toys from sides that training never showed? Accuracy on test images with the azimuths of training, and with all others. The test has other toys, too.", "name": "fig-wr-viewpoints"}, "image": {"alt": "Accuracy of each network on images of toys, on the left from the azimuths of training, on the right from others. Highest from others: {leading}`from novel azimuths`."}} tags=["hide-input"]
compare(
    {
        "familiar azimuths (%)": "familiar_accuracy_at_steps",
        "novel azimuths (%)": "novel_accuracy_at_steps",
    },
    sharex="row",
)

# %% tags=["remove-input"]
outcomes = comparisons.get(("smallnorb", "from novel azimuths"))
if outcomes:
    winners = [label(name) for name, outcome in outcomes.items() if outcome == "better"]
    losers = [label(name) for name, outcome in outcomes.items() if outcome == "worse"]
    frames.say(
        "From novel azimuths, these networks win against no routing: "
        f"{', '.join(winners) or 'none'}. These lose: {', '.join(losers) or 'none'}."
    )

# %% [markdown]
# ## Under attack
#
# Projected gradient descent (PGD) changes every pixel by at most $\varepsilon$, in ten steps that raise the cross entropy of the class scores. Here $\varepsilon$ is in standard deviations of an image.

# %% mystnb={"figure": {"caption": "Which network withstands an attack? Accuracy on 500 attacked test images.", "name": "fig-wr-attacks"}, "image": {"alt": "Accuracy of each network under attacks of two strengths, a row of panels for each data set. Highest under the weaker one: {leading}`attacked with epsilon 0.1`."}} tags=["hide-input"]
compare(
    {
        "ε = 0.1, accuracy (%)": "pgd_0.1_accuracy",
        "ε = 0.2, accuracy (%)": "pgd_0.2_accuracy",
    }
)

# %% tags=["remove-input"]
highest = study.highest("pgd_0.2_accuracy")
if highest:
    frames.say(
        f"Leaders under the stronger attack, named as in the table above: {highest}."
    )

# %% [markdown]
# An attack that follows gradients fails where they vanish, and then says nothing. The last table of the page has the share of zero gradients. For capsules these are mostly the edge pixels that they never read, so an attack has fewer pixels to change than on the CNN.
#
# ## Does it route at all?
#
# A coupling is the weight of a vote, and couplings that stay uniform are no routing. Their distance from uniform is the share of weight that would have to move to make them equal. It is 0 if all competing votes weigh the same. If one vote takes all, it is 90 % among ten classes, and 80 % among the five of smallNORB. Among the children of a class it is above 99 %.
# {doc}`Negation and bias <papers/negation_limitation>` asks a second question: does a network tell an image from its negative?

# %% mystnb={"figure": {"caption": "How far do couplings differ from uniform, and how often does a negative get the class of its image? Both on 2,000 test images.", "name": "fig-wr-couplings"}, "image": {"alt": "Distance of the couplings from uniform, and share of images whose negative gets the same class, for each network; a row of panels for each data set."}} tags=["hide-input"]
compare(
    {
        "distance from uniform (%)": "coupling_distance",
        "negatives with the same class (%)": "negated_agreement",
    }
)


# %% tags=["remove-input"]
def means(metric: str) -> dict[str, float]:
    """Return the mean of a metric over all data sets, of each network that has it on all."""
    by_network = {}
    for network in study.networks:
        by_data = [study.values(data, metric).get(network) for data in study.data_sets]
        if all(by_data):
            by_network[network] = study.mean(network, metric)
    return by_network


distances = means("coupling_distance")
distances.pop(UNIFORM, None)  # it is zero
if distances:
    in_order = sorted(distances, key=distances.get)
    parts = [f"{label(network)} {distances[network]:.0f} %" for network in in_order]
    over_children = []
    for network in in_order:
        if network in ROUTINGS and ROUTINGS[network].couplings_sum_over == "children":
            over_children.append(label(network))
    frames.say(
        f"Mean distance over all data sets, the least first: {', '.join(parts)}. "
        "The ceiling is higher where couplings sum to one over the children: "
        f"{', '.join(over_children)}."
    )
agreements = means("negated_agreement")
if agreements:
    least = min(agreements, key=agreements.get)
    most = max(agreements, key=agreements.get)
    frames.say(
        f"A negative gets the class of its image in {agreements[least]:.0f} % of cases "
        f"({label(least)}) to {agreements[most]:.0f} % ({label(most)}), "
        "a mean over all data sets."
    )

# %% [markdown]
# ## The protocol
#
# We fixed the networks, the trainings and the measurements before the runs. In rehearsals of at most 1,000 steps hardly a smallNORB image survived the attacks, so we lowered $\varepsilon$. We fixed which comparisons count, and what wins one, when one seed on MNIST had run.
#
# * **Network.** A convolution, primary capsules, and one capsule for each class, without a decoder. The CNN has as many parameters. Each routing has its own defaults. *No routing* is one iteration of dynamic routing, whose couplings are uniform.
# * **Data.** MNIST, Fashion-MNIST, and smallNORB at 32 × 32 pixels, made from a [JPEG export](data.md) at half size. Each image is standardised. We hold out 5,000 training images; of smallNORB, one toy of each class.
# * **Training.** Margin loss, for the CNN on the logistic function of its logits. Adam with a constant learning rate, batches of 64, no augmentation.
# * **Learning rate.** 0.001 and 0.003 for each network. The one with the higher held-out accuracy counts; test images choose nothing.
# * **Budgets.** 12,000 steps for each network; and the core-seconds that dynamic routing takes for them. How many steps these allow follows from one timing before the runs.
# * **Novel viewpoints.** Images of six azimuths to train on, and a third of the steps: as many passes over the images.
# * **Seeds.** Three, for first weights and the order of images.
#
# The whole network for images of 28 × 28 pixels, and one training step:

# %%
import torch
from torch import nn

from capslib.layers import DenseCapsules, PrimaryCapsules
from capslib.losses import margin_loss
from capslib.routing import start_on_first_batch


class SmallCapsNet(nn.Module):
    def __init__(self, routing: str):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, kernel_size=5, stride=2)  # 28 × 28 → 12 × 12
        self.primary = PrimaryCapsules(32, types=8, dim=8, kernel=5)  # → 4 × 4
        self.classes = DenseCapsules(8 * 4 * 4, 10, 8, 16, routing=routing)

    def forward(self, images):
        return self.classes(*self.primary(self.conv(images).relu()))


network = start_on_first_batch(SmallCapsNet("em"))
optimizer = torch.optim.Adam(network.parameters(), 0.001)
images, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))

loss = margin_loss(network(images).activation, labels)
optimizer.zero_grad()
loss.backward()
optimizer.step()

# %% tags=["remove-input"]
sizes = {}
for name in ("em", "cnn"):
    built = recipe_of(name, "mnist", rate=0.001).build((1, 28, 28), 10)
    sizes[name] = number_of_parameters(built)
frames.say(
    f"With EM routing it has {number_of_parameters(network):,} parameters, "
    f"and the CNN of the study {sizes['cnn']:,}."
)
assert number_of_parameters(network) == sizes["em"]

# %% [markdown]
# `start_on_first_batch` lets a routing that needs it set its parameters from the first batch. In the study, the matrices $W$ that make votes start with a standard deviation of 0.1; for dynamic routing over children it is 1 (`weight_std=1`).
#
# Limits of the study:
#
# * Another network, loss or budget may order the routings differently.
# * The CNN has dropout and padding, and the capsules have neither.
# * Time is that of one core, measured beside other trainings. A GPU may order the networks differently.
#
# ```{fold} Every setting
# ```

# %% tags=["remove-input"]
frames.styled(frames.configuration(EXPERIMENTS["comparison"]))

# %% [markdown]
# ## Use it
#
# All capsule networks of the library, and all layers above the primary capsules, take a routing by its name, as here. {doc}`use_the_library` says more, and {doc}`api/routing` lists what each routing takes.
#
# ## Run it yourself
#
# ```shell
# capslib data fetch mnist fashion_mnist smallnorb
# capslib run which_routing --scale cpu
# ```
#
# %% tags=["remove-input"]
seconds = sum(run.wall_seconds for runs in study.records.values() for run in runs)
if study.scale == "cpu":
    frames.say(
        f"The {finished} trainings took {seconds / 3600:.0f} hours of a CPU core, "
        "beside other work."
    )

# %% [markdown]
# A routing of your own appears here once it is in `capslib/registry.py`, has run, and `make book` has drawn the page again.
#
# ```{fold} All measurements
# ```

# %% tags=["remove-input"]
HIDDEN = ("trained_at", "steps_at", "seconds_of", "bytes_for")
columns = [label(network) for network in study.networks]
rows = {}
for data in study.data_sets:
    runs = study.runs(data, "test_accuracy_at_steps")
    for metric in dict.fromkeys(
        metric for seeds in runs.values() for metric in seeds[0].metrics
    ):
        if not metric.startswith(HIDDEN):
            values = study.values(data, metric)
            cells = [frames.mean(values.get(network, [])) for network in study.networks]
            rows[f"{title(data)}: {metric.replace('_', ' ')}"] = cells
frames.table(rows, columns, "measured (%)")
