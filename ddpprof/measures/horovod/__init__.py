"""Measures the steps and reductions of a Horovod timeline."""
