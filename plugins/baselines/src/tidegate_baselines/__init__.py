"""Policies to measure others against, each in the file of its name."""
