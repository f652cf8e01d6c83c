"""The version of ddpprof."""

__version__ = "0.2.0"
