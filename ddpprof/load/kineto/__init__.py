"""A trace file of torch.profiler → columns."""
