"""What a launcher says of its job while that runs: a thread of it looks at the pulses of all ranks.

look.py           What one kind of looking is
run_watch.py      The thread: when does it look, and at which attempt?
hang_look.py      Does the job hang, and why?
slowdown_look.py  Since when, by how much and why do steps take longer?
loss_look.py      Is a loss NaN or infinite, and on which rank did it begin?
"""
