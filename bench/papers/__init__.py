"""Programs that reproduce figures of the papers, one for each; most take long, or need the papers' data."""
