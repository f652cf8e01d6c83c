"""Analysis of many ranks, or a few large ones: who reads them, where results are cached, and how they are merged."""
