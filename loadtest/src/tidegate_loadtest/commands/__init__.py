"""What the load test adds to the `tidegate` command."""
