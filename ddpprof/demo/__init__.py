"""Training scripts for ``ddpprof demo``. They do not use ddpprof, and can run on their own."""
