"""Planners of MPS shares on measured models: see `python -m bench.inss --help`."""
