"""The faults that `train.py` can plant, and what a verdict on each should say."""

EXPECTED = {
    "sleep": "own-code",
    "after_backward": "own-code",
    "backward": "own-code",
    "barrier": "other-collective",
    "all_reduce": "other-collective",  # or "died": gloo aborts a process that gets a message of another size
    "broadcast": "other-collective",
    "lock": "lock",
    "queue": "lock",
    "stop": "stopped",
    "kill": "died",
    "error": "died",
    "exit": "died",
    "unused": "died",
    "interpreter": "interpreter-held",
    "save": "storage",
    "worker": "loader",
    "uneven": "ended-early",
    "link": "link",
}
NO_LINE = ("stop", "kill", "exit", "unused", "interpreter", "save", "link", "worker")
"""faults without a line of the user's code that the rank to blame could name"""
NO_BUCKET = ("backward", "kill", "error", "exit", "unused", "all_reduce", "link")
"""faults at which no bucket is missing on that rank alone"""
