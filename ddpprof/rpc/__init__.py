"""Calls through ``torch.distributed.rpc`` beside DDP, as the recorder noted them."""
