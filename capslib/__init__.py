"""Capsule networks in PyTorch: layers, routings, networks, losses and attacks.

    >>> import torch
    >>> from capslib.networks import create_network
    >>> network = create_network("capsnet", (3, 40, 28), classes=4, routing="em")
    >>> network(torch.rand(2, 3, 40, 28)).activation.shape
    torch.Size([2, 4])

============================  =================================================================
capslib.networks              create_network: a network by name, for images of any shape
capslib.layers                capsule layers that take any routing
capslib.routing               routings as functions and as modules, by name; squash
capslib.losses                margin_loss, spread_loss
capslib.training              fit: the training loop; accuracy
capslib.recipes               train: a network, its data and its loss, all by name
capslib.attacks               fgsm, bim, pgd; accuracy under attack
capslib.inequality            gini, palma; scores: anomalies by their couplings
capslib.data                  load: named data sets as memory-mapped arrays
============================  =================================================================

The page "Use the library" of the book begins with an installation and a first network.

For contributors: the package has three wings, here from the top down. A module imports only
from modules on lower lines, or to its left on its own line::

    the lab      cli                                    the command line, thin
                 notebooks  chapter  study              execute chapters; what pages show
                 workers  progress  batch               run them here or on a cluster, shown
                 review  skeleton                       check records; a new paper
                 pack                                   runs on a machine without a network
                 planning  budget                       plan trials; the best for a given time
                 counting  estimates                    what steps do; what trials take
                 judging  claims  frames                judge a claim; all verdicts; tables
                 replicates  samples  decisions         runs by seed, of a check; their word
                 words  headlines                       what verdicts are; those on an abstract
                 ledger  store  runs                    the papers' claims; records; one trial
                 provenance  memory  signals            which code ran; memory; what stops it
                 records  settings  statistics  plots   what a trial leaves; how to run; figures

    the papers   STEM                                   a room for each paper and study
                 common                                 what their experiments share
                 experiment  names  check               named arms, in words; what a claim asks

    the library  recipes                                what a training is made of, by name
                 training  config                       the one fit loop; frozen configurations
                 checkpoints                            the state of a run
                 networks  data                         the papers' networks; named data sets
                 layers  attacks  losses  inequality    capsule layers that take any routing
                 routing                                routing procedures
                 errors  files  registry  shapes        errors; files; names; checks of shapes

The library needs torch, numpy, einops, pydantic, tqdm, filelock and what reading data takes.
The papers need the library; the lab comes with ``pip install -e ".[lab]"`` in a checkout.
``import capslib`` does no work, and does not import torch.
"""

__version__ = "0.1.0"
