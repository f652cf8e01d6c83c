"""Measures: one question per file, named after the answer; the model goes in, numbers come out.

step/         where the time of a step goes, and how much of it is the work of DDP or ddpprof
buckets/      when gradients are reduced, and what hides it
collectives/  all collectives: which, how fast, and which rows of different ranks belong together
ranks/        differences between ranks: clocks, lateness, failures, samples, parameters
kernels/      single kernels, and whole devices
statistics/   intervals, ratios and models of measured times of any kind
"""
