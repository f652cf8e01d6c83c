"""Read a torch.profiler trace file (written by Kineto) into columns."""
