"""Subcommands that the plugin adds to `tidegate`, each in the file of its name: `train_inss`."""
