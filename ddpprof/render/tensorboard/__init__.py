"""A run in TensorBoard: native data, which need neither plugin nor network, and the data for its profiler plugin."""
