"""A thread of the launcher looks at the pulses of all ranks while the job runs, and reports what is wrong.

run_watch.py      The thread: when does it look, and at which attempt?
hang_look.py      Does the job hang, and why?
slowdown_look.py  Since when, by how much and why do steps take longer?
loss_look.py      Is a loss NaN or infinite, and on which rank did it begin?
"""
