"""`make bench`: what standing in front of Triton costs, measured side by side in one run."""
