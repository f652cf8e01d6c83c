"""Reads a trace file of torch.profiler into columns."""
