"""Analysis of many ranks, or a few large ones: who reads them, where results are kept, and how they form one report."""
