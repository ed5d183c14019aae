"""PARIS, ELSA and their baselines on measured MIG slices: see `python -m bench.papers.paris_elsa --help`."""
