"""Regret of using Tidegate: random scenarios, the default policy against Triton's batcher."""
