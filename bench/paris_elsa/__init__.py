"""PARIS, ELSA and their baselines on measured MIG slices: see `python -m bench.paris_elsa --help`."""
