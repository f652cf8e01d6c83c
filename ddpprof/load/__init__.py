"""Load a run directory, torch.profiler traces, or the timelines and tables of other tools into a `Run`."""
