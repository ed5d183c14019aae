"""A scheduling policy for Tidegate: `policy` implements it, `plugin` registers it."""
