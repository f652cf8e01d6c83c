"""Gradients that are averaged without torch's DDP: by ``nn.DataParallel``, or by hooks of the script, as Apex's do.

street.py         what the main road calls
transfers.py      what ``nn.DataParallel`` moves between the devices of its process
own_reduction.py  all-reduces in hooks of the script's own
rules.py          what to change
sections.py       the report's lines and its table
"""
