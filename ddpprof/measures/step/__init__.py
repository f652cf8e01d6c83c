"""Split of a step's time into its parts.

accumulation.py    Does a step reduce gradients several times although only their sum is used?
blocks.py          What did an accelerator do, block of time by block of time?
breakdown.py       Where does a step's time go?
idle.py            Why is an accelerator idle?
recording_cost.py  What does ddpprof itself cost?
timeline.py        What happened when, in one step of one rank?
torch_times.py     Does DDP agree?
trial_steps.py     How long are the steps of a trial?
usual_steps.py     Over which profiled steps do the tables average?
wrapper.py         What does DDP itself cost the training thread?
"""
