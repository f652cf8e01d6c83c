"""Statistics used by both the analysis and the experiments."""
