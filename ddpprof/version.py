"""The version of ddpprof."""

__version__ = "0.3.0"
