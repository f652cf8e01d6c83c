"""A run in TensorBoard: native data, which need neither plugin nor network, and the data for its profiler plugin.

native.py writes all of the native data: one TensorBoard run per rank, and one, ``run``, for data of all ranks.
"""
