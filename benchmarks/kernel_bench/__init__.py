"""The modules of benchmarks/kernels.py. ``cases`` does not import torch, so that --help answers at once."""
