"""Capsule networks for the executable book: routings, layers, networks, experiments, records and verdicts.

The package is built in floors; a module imports only from floors below its own::

    6  cli                               thin command line
    5  notebooks  batch  claims          execute a notebook; run many trials; turn records into verdicts
    4  papers/STEM                       a paper's experiments, queries and figures
    3  trials  store  queries           trials and records; the folder of records; what a claim asks of them
       training  plots                  the one fit loop; figure style
    2  networks/STEM  data/              the papers' networks; named data sets
    1  layers  losses                    capsule layers that take any routing; losses
    0  routing/  errors                  routing procedures and their registry; the one error a user sees

``import capslib`` itself does no work and does not import torch.
"""

__version__ = "0.1.0"
