"""Capsule networks for the executable book, in three wings.

The plan, from the top down. A module imports only from below its own place: from lower lines, or from its left on its line::

    the lab      cli                                              the command line, thin
                 notebooks  chapter                               execute chapters; claims on a page
                 review  planning  workers  progress  batch       check records; plan trials; run them here or on a cluster, shown
                 estimates                                        what trials take
                 judging  claims  frames                          judge a claim; all verdicts; tables
                 replicates  samples  decisions                   records seed by seed; those of a check; what they decide
                 words  headlines                                 what a verdict is; what those on an abstract come to
                 ledger  store  runs                              what the papers claim; the folder of records; run one trial
                 records  settings  statistics  plots             what a trial leaves; where to run; intervals; the style of figures

    the papers   em_routing  negation_limitation  inequality_anomaly  sparse_unsupervised  learned_routing    one room each
                 common                                           what their experiments share
                 experiment  check                                what an experiment and a trial are; what a claim can ask

    the library  recipes                                          what a training is made of, by name, and the training itself
                 training  config                                 the one fit loop; frozen, typed configurations
                 checkpoints                                      the state of a run, kept and taken up again
                 networks  data                                   the papers' networks; named data sets
                 layers  attacks  losses  inequality              capsule layers that take any routing; attacks; losses; inequality
                 routing                                          routing procedures
                 errors  files  registry  shapes                  errors that a user sees; files written whole; names; shapes

The library needs torch, numpy, einops and what reading data takes; the papers need the library; the lab comes with
``pip install capslib[lab]``. ``import capslib`` itself does no work and does not import torch.
"""

__version__ = "0.1.0"
