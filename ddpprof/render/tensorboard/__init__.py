"""A run as TensorBoard shows it: native data, which need neither plugin nor network, and what its profiler plugin
is to count.

native.py writes all of the native data: one TensorBoard run per rank, and one, ``run``, for what is of all ranks.
"""
