"""Planners of MPS shares on measured models: see `python -m bench.papers.inss --help`."""
