"""Statistics that the analysis and the experiments share."""
