"""Speed and memory of routings and training steps, as multiples of what this machine can do.

``python -m benchmarks`` measures everything in one run and writes
``benchmarks/results/MACHINE.csv``. Nothing here is a test: a number depends on the machine, and
only ratios measured side by side mean anything.
"""
