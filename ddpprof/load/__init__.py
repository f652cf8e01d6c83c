"""Files → model: a run directory, traces of torch.profiler, or timelines and tables of other tools become a `Run`."""
