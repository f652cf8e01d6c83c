"""`ddpprof doctor`: is this machine, with its installation, fit for recording, and does ddpprof work correctly on it?

`catalogue` lists the checks. Each runs in processes of its own, within a time limit of its own, and says what was
expected and what was found. Training checks start scripts that know nothing of ddpprof, with and without it.
"""
