"""Numbers: one question per file, named by its answer; the model goes in, one frozen dataclass comes out.

step/         where the time of a step goes, and what of it is DDP's or ddpprof's own
buckets/      when gradients are reduced, and what hides it
collectives/  every collective: which, how fast, and which rows of different ranks are the same one
ranks/        what differs between ranks: clocks, who is late, who failed, who has other samples or parameters
kernels/      single kernels, and whole devices
statistics/   intervals, ratios and models of measured times, whatever they are of
"""
