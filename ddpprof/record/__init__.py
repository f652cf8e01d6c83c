"""Recording, inside or around the training process. Only this package and the training scripts of `demo` and `doctor`
import torch.

    inject/             the folder that `launch` puts on PYTHONPATH; its sitecustomize.py acts when DDP is imported
"""
