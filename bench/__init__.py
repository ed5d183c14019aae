"""Benchmarks that `make bench` runs: the cost of the proxy before Triton, measured against direct access in one run."""
