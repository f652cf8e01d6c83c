"""Calls through ``torch.distributed.rpc`` beside DDP, as the recorder noted them.

street.py    what the main road calls
calls.py     what calls cost a rank
rules.py     what to change
sections.py  the report's table
"""
