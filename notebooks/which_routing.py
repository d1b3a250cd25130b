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
# Open: the networks are still training.
# :::
#
# No paper answers this question: each compares its routing with one or two others, in networks of its own.
# Here every routing of the library trains the same small network, on the same images, with the same budget.
# Two yardsticks stand beside them: the same capsules without routing, and a CNN with as many parameters.

# %% tags=["parameters", "remove-cell"]
# smoke: stand-ins, seconds · cpu: real data, the whole study · paper: the same as cpu
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
from statistics import fmean

from matplotlib import pyplot as plt

from capslib.lab import frames, plots
from capslib.lab.chapter import Chapter
from capslib.lab.statistics import interval, leaders
from capslib.papers.which_routing import EXPERIMENTS, STEM, shown
from capslib.papers.which_routing.comparison import BUDGETS

plots.use_style()
chapter = Chapter(STEM, results_dir)
comparison = EXPERIMENTS["comparison"]

# %% tags=["remove-cell"]
trained_here = [*session.run(STEM, "comparison"), *session.run(STEM, "viewpoints")]

# %% tags=["remove-cell"]
everything = [*chapter.records, *trained_here]
finished = frames.select(everything, "comparison", "cpu")
scale_shown = "cpu" if shown.counted(finished, "steps") else "smoke"
records = frames.select(everything, "comparison", scale_shown)
seeds_shown = comparison.seeds[scale_shown]
counted = {budget: shown.counted(records, budget, seeds_shown) for budget in BUDGETS}
sets = list(dict.fromkeys(place.data for place in counted["steps"]))
names = list(dict.fromkeys(place.network for place in counted["steps"]))
of_viewpoints = frames.select(everything, "viewpoints", scale_shown)
viewpoints = {"steps": shown.counted(of_viewpoints, "steps", seeds_shown)}


def values_of(
    data: str, metric: str, budget: str = "steps", runs_of=counted
) -> dict[str, list[float]]:
    """Return a metric of each network on a data set, seed by seed; of trained ones alone.

    On stand-ins, where none trains long enough, it is that of all.
    """
    by_network = {}
    for place, runs in runs_of[budget].items():
        values = shown.values(runs, metric)
        is_shown = scale_shown == "smoke" or shown.have_trained(runs, budget)
        if place.data == data and values and is_shown:
            by_network[place.network] = values
    return by_network


# %% tags=["remove-input"]
expected, count = 0, 0
for name, experiment in EXPERIMENTS.items():
    expected += len(experiment.trials("cpu"))
    count += len(frames.select(everything, name, "cpu"))
if count == expected:
    frames.say(f"All {expected} networks have trained.")
else:
    frames.say(
        f"So far {count} of {expected} networks have trained. "
        "A network appears below once both learning rates have run with all seeds."
    )
if scale_shown == "smoke":
    frames.say("Until then the page shows seconds of training on stand-ins, and no answer.")

# %% [markdown]
# ## Which network leads, and in what
#
# A cell names the best network with its mean, and then whatever three seeds cannot tell from it.

# %% tags=["remove-input"]
ACCURACY = {
    "after equally many steps": ("test_accuracy_at_steps", "steps"),
    "after equally many core-seconds": ("test_accuracy_at_seconds", "seconds"),
    "shifted 4 pixels": ("shifted_4_accuracy", "steps"),
    "turned 30°": ("rotated_30_accuracy", "steps"),
    "at three quarters of its size": ("scaled_75_percent_accuracy", "steps"),
    "attacked with ε = 0.1": ("pgd_0.1_accuracy", "steps"),
}
leading = {}
for question, (metric, budget) in ACCURACY.items():
    leading[question] = []
    for data in sets:
        values = values_of(data, metric, budget)
        best = leaders(values)
        leading[question].append(shown.leading(values, best) if best else frames.MISSING)
frames.table(leading, [shown.SETS.get(data, data) for data in sets], "accuracy (%)")

# %% [markdown]
# ## What each routing gives, and what it costs
#
# Bold is the best of a column, and whatever three seeds cannot tell from it.
# Time and memory are those of a training step with 64 images, relative to dynamic routing.
# A network has trained if it is right on nine of ten training images.

# %% tags=["remove-input"]
COSTS = {"time of a step": "seconds_of_step", "memory of a step": "bytes_for_gradient"}


def relative_cost(network: str, metric: str) -> str:
    """Return the mean cost of a step, relative to dynamic routing, over the data sets."""
    ratios = []
    for data in sets:
        costs = values_of(data, metric)
        if network in costs and "dynamic" in costs:
            ratios.append(fmean(costs[network]) / fmean(costs["dynamic"]))
    return f"{fmean(ratios):.2f}" if ratios else frames.MISSING


columns = [f"{shown.SETS.get(data, data)} (%)" for data in sets]
rows, is_best = {}, {}
accuracies = {data: values_of(data, "test_accuracy_at_steps") for data in sets}
best = {data: leaders(accuracies[data]) for data in sets}
for network in names:
    cells = [frames.mean(accuracies[data].get(network, [])) for data in sets]
    costs = [relative_cost(network, metric) for metric in COSTS.values()]
    trained, count = shown.trained_share(records, network)
    rows[shown.label(network)] = [*cells, *costs, f"{trained} of {count}"]
    is_best[shown.label(network)] = [network in best[data] for data in sets]
table = frames.table(rows, [*columns, *COSTS, "trained"], "network")
bold = {True: "font-weight: bold", False: ""}
table.apply(lambda row: [bold[best] for best in is_best[row.name]], axis=1, subset=columns)


# %% mystnb={"figure": {"caption": "Which network is most accurate? Test accuracy after equally many steps, and after as many core-seconds as dynamic routing takes for them. Small: seeds; large: their mean, with its 95 % interval.", "name": "fig-wr-accuracy"}, "image": {"alt": "Test accuracy of each network, a row of panels for each data set: at the left after equally many steps, at the right after equally many core-seconds."}} tags=["hide-input"]
def compare(columns: dict[str, tuple[str, str]], sets=sets, runs_of=counted) -> None:
    """Draw a panel for each data set and column, which names a metric and a budget."""
    rows, width = max(1, len(sets)), len(columns)
    _, axes = plots.panels(width, height=2.5, rows=rows, squeeze=False, sharey=True)
    for line, data in zip(axes, sets, strict=False):
        for axis, (label, (metric, budget)) in zip(line, columns.items(), strict=True):
            values = values_of(data, metric, budget, runs_of)
            drawn = {}
            for network in names:
                seeds = values.get(network, [])
                color = plots.routing_color(network)
                drawn[shown.label(network)] = (color, None, seeds, interval(seeds) or ())
            plots.rows(axis, drawn)
            axis.set_title(shown.SETS.get(data, data))
            axis.set_xlabel(label)
    plt.show()


compare(
    {
        "test accuracy, equal steps (%)": ("test_accuracy_at_steps", "steps"),
        "test accuracy, equal core-seconds (%)": ("test_accuracy_at_seconds", "seconds"),
    }
)

# %% [markdown]
# ## On images that training never saw
#
# Capsules are said to generalise to new positions and poses. The networks train on upright, centred images, without augmentation. Then test images are shifted, turned or made smaller.

# %% mystnb={"figure": {"caption": "Which network withstands changes that training never saw? Accuracy on 2,000 test images.", "name": "fig-wr-unseen"}, "image": {"alt": "Accuracy of each network on test images that are shifted by four pixels, turned by thirty degrees, or made smaller by a quarter; a row of panels for each data set."}} tags=["hide-input"]
compare(
    {
        "shifted 4 pixels (%)": ("shifted_4_accuracy", "steps"),
        "turned 30° (%)": ("rotated_30_accuracy", "steps"),
        "three quarters (%)": ("scaled_75_percent_accuracy", "steps"),
    }
)

# %% [markdown]
# ## From viewpoints that training never saw
#
# In a second experiment the networks see smallNORB from six of its 18 azimuths. {doc}`EM routing <papers/em_routing>` asks the same of its paper's networks, against a CNN.

# %% mystnb={"figure": {"caption": "Which network recognises a toy from a side that it has not seen? Accuracy on test images with the azimuths of training, and with all others.", "name": "fig-wr-viewpoints"}, "image": {"alt": "Accuracy of each network on images of toys, on the left from the azimuths of training, on the right from others."}} tags=["hide-input"]
compare(
    {
        "familiar azimuths (%)": ("familiar_accuracy_at_steps", "steps"),
        "novel azimuths (%)": ("novel_accuracy_at_steps", "steps"),
    },
    sets=list(dict.fromkeys(place.data for place in viewpoints["steps"])),
    runs_of=viewpoints,
)

# %% [markdown]
# ## Under attack
#
# Projected gradient descent (PGD) changes every pixel by at most $\varepsilon$, in ten steps that raise the loss. Here $\varepsilon$ is in standard deviations of an image.

# %% mystnb={"figure": {"caption": "Which network withstands an attack? Accuracy on 500 attacked test images.", "name": "fig-wr-attacks"}, "image": {"alt": "Accuracy of each network under attacks of two strengths; a row of panels for each data set."}} tags=["hide-input"]
compare(
    {
        "ε = 0.1, accuracy (%)": ("pgd_0.1_accuracy", "steps"),
        "ε = 0.2, accuracy (%)": ("pgd_0.2_accuracy", "steps"),
    }
)

# %% [markdown]
# An attack that follows gradients fails where they vanish, and then says nothing. The last table has the share of zeros in the gradient.
#
# ## Does it route at all?
#
# Couplings that stay uniform are no routing. Their distance from uniform is the share that lies elsewhere: 0 if all competitors get the same, and nearly 1 if one gets all.
# {doc}`Negation and bias <papers/negation_limitation>` asks a second question: does a network tell an image from its negative?

# %% mystnb={"figure": {"caption": "How far do couplings differ from uniform, and how often does a negative get the class of its image? Both on 2,000 test images.", "name": "fig-wr-couplings"}, "image": {"alt": "Distance of the couplings from uniform, and share of images whose negative gets the same class, for each network; a row of panels for each data set."}} tags=["hide-input"]
compare(
    {
        "distance from uniform (%)": ("coupling_distance", "steps"),
        "negatives with the same class (%)": ("negated_agreement", "steps"),
    }
)

# %% [markdown]
# ## The protocol
#
# It stood before the runs. One exception: after rehearsals of at most 1,000 steps we lowered $\varepsilon$, because hardly a smallNORB image survived.
#
# * **Network.** A convolution, primary capsules, and one capsule for each class, without a decoder. Each routing has its own defaults. *No routing* is one iteration of dynamic routing, whose couplings are uniform.
# * **Data.** MNIST, Fashion-MNIST, and smallNORB at 32 × 32 pixels, each image standardised. Some training images are held out; of smallNORB one instance of each class.
# * **Training.** Margin loss, Adam with a constant learning rate, batches of 64, no augmentation.
# * **Learning rate.** Two for each network. The one with the higher held-out accuracy counts; test images choose nothing.
# * **Budgets.** 12,000 steps for each network; and the core-seconds that dynamic routing takes for them.
# * **Novel viewpoints.** Images of six azimuths to train on, and a third of the steps: as many passes over the images.
# * **Seeds.** Three, for first weights and the order of images.
#
# The whole network, and how a batch becomes a loss:
#
# ```{live-source} capslib.networks.capsnet.CapsNet.forward
# ```
#
# ```{fold} Every setting
# ```

# %% tags=["remove-input"]
frames.styled(frames.configuration(comparison))

# %% [markdown]
# What the study does not say:
#
# * Another network, loss or budget may order the routings differently.
# * The CNN has dropout, and the capsules have none.
# * Time and memory are those of one core; a GPU may order them differently.
#
# ## Use it
#
# Every layer and every network takes a routing by its name:

# %%
import torch

from capslib.networks import create_network

network = create_network("capsnet", (1, 28, 28), 10, routing="em")
parents = network(torch.rand(2, 1, 28, 28))
tuple(parents.activation.shape)

# %% [markdown]
# {doc}`use_the_library` trains it, and {doc}`api/routing` lists what each routing takes.
#
# ## Run it yourself
#
# ```shell
# capslib data fetch mnist fashion_mnist smallnorb
# capslib run which_routing --scale cpu
# ```
#
# A routing of your own appears here by itself, once it is [registered](use_the_library.md#add-a-routing) and has run.
#
# ```{fold} All measurements
# ```

# %% tags=["remove-input"]
HIDDEN = ("trained_at", "steps_at", "seconds_of", "bytes_for")
rows = {}
for place, runs in counted["steps"].items():
    metrics = [name for name in runs[0].metrics if not name.startswith(HIDDEN)]
    for metric in metrics:
        row = rows.setdefault((shown.SETS.get(place.data, place.data), metric), {})
        row[shown.label(place.network)] = frames.mean(shown.values(runs, metric))
columns = [shown.label(network) for network in names]
lines = {}
for (data, metric), row in rows.items():
    name = f"{data}: {metric.replace('_', ' ')}"
    lines[name] = [row.get(column, frames.MISSING) for column in columns]
frames.table(lines, columns, "measured (%)")
