"""The replay: how long would the step take with other buckets, another network, more ranks?

profile.py        a run's own steps if nothing were sent (light_steps.py, traced_steps.py, training.py)
network.py        how long an all-reduce takes, and what it takes of the computation beside it
replay.py         when the backward pass ends, if its gradients are sent in these buckets over this link
predict.py        the step under a `Setting` (setting.py, caps.py), with an interval (uncertainty.py)
search.py         the best buckets; candidates.py: the settings that are worth a trial
"""
