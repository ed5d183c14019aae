"""PARIS and ELSA: layouts of MIG slices for the sizes of requests, and a policy that fills them (Kim et al., DAC 2022)."""
