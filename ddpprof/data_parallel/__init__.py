"""Gradients that are averaged without torch's DDP: by ``nn.DataParallel``, or by hooks of the script, as Apex's do."""
