"""Intervals, ratios and models of measured times of any kind.

hopeless_variant.py  Is a variant so far behind another that more rounds are not worth their steps?
joint_ratios.py      How much longer do the steps of several variants take than that of one?
loss_match.py        Does a training with another setting have the same losses as the unchanged training, step by step?
medians.py           Statistics that skip missing values, and a lower quartile
p_values.py          How likely is it that mere chance did this?
paired_ratio.py      How much longer does one variant's step take than another's?
shift.py             By how much do two samples differ, and how much of that is their own spread?
size_model.py        How does a time grow with a size, and from which size on is one configuration faster than another?
"""
