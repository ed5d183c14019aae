"""Programs that reproduce figures of papers, one for each paper. Most take long or need the paper's data."""
