"""Recording, inside or around the training process. Only this package and the trainings of `demo` and `doctor` import
torch.

    inject/             the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
"""
