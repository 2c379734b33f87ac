"""What benchmarks/kernels.py is made of; ``cases`` is read without torch, for --help."""
