"""`ddpprof doctor`: are this machine and its installation fit for recording? Does recording change training?"""
