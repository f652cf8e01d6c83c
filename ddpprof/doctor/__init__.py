"""`ddpprof doctor`: is this machine, with its installation, fit for recording? Does recording leave training alone?"""
