"""Measures of single kernels and whole devices.

devices.py           How much does each accelerator of one process work?
kernels.py           Which kernels take the time of a step?
overlap_slowdown.py  How much slower are kernels during communication, and what does that cost a step?
"""
