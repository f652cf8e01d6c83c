"""The replay: how long would the step take with other buckets, another network, more ranks?

profile.py        a run's own steps without communication (light_steps.py, traced_steps.py, training.py)
network.py        how long an all-reduce takes, and how much of a concurrent computation it costs
replay.py         when the backward pass ends, if its gradients are sent in these buckets over this link
predict.py        the step with a `Setting` (setting.py, caps.py), with an interval (uncertainty.py)
search.py         the best buckets; candidates.py: the settings worth a trial
"""
