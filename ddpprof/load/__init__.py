"""Files → model: a run directory, traces of torch.profiler, timelines and tables of others become a `Run`."""
