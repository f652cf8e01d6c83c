"""`ddpprof doctor`: is this machine, with what is installed on it, fit for recording, and is ddpprof right here?

`catalogue` lists the checks. Each runs in processes of its own, within a time of its own, and says what was expected
and what was found. Those of training start scripts that know nothing of ddpprof, with it and without it.
"""
