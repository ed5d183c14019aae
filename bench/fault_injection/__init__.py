"""Hazards for a Tidegate under load, which `python -m bench.faults` runs.

`hazards` has what is done to it, and the outcome; `kills` the longest of them; `rig` the servers, models and clients.
"""
