"""A scheduling policy for Tidegate: the policy is in `policy`, what offers it by name in `plugin`."""
