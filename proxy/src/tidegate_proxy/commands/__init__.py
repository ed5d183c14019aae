"""Commands that the proxy adds to `tidegate`: one file and one function each."""
