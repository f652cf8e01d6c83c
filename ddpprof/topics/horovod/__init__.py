"""Horovod: the timeline file that rank 0 writes, its measures, rules and tables."""
