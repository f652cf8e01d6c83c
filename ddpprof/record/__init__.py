"""Recording, inside or around the training process. Only this part imports torch, and trainings of `demo`, `doctor`.

inject/             the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
"""
