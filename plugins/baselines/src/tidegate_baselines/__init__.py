"""Baseline policies for comparison, each in the file of its name."""
