"""Measures of collectives: which ones run, how fast, and which rows of different ranks belong together.

collective_table.py    Which collectives ran, how often, how big, how fast?
link_speed.py          How fast does a collective of each size get through the network, and how fast do two at once?
match_candidates.py    Which rows of different ranks could be the same collective?
matching.py            Which rows of different ranks are the same collective?
mismatches.py          How do the ranks' collectives differ where they should be the same?
script_collectives.py  Which collectives does the script itself call, outside DDP, and what do they cost in each step?
time_alone.py          How long would a collective have taken with the link to itself?
"""
