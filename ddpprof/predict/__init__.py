"""The replay: how long would the step take with other buckets, another network, more ranks?

profile.py       a run's own steps without communication
light_steps.py   these steps, from light recording
traced_steps.py  these steps, from a trace without ddpprof's record
training.py      what a replay knows of a DDP module: its gradients, and the buckets that DDP makes of them
setting.py       what the user asks for: options of DDP or the cluster
caps.py          bucket caps as a user gives them
network.py       how long an all-reduce takes, and how much of a concurrent computation it costs
replay.py        when the backward pass ends, if its gradients are sent in these buckets over this link
predict.py       the step with a `Setting`
uncertainty.py   the interval of a prediction
candidates.py    the settings worth a trial
search.py        the best buckets
"""
