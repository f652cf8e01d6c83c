"""Record a training job, from inside its processes and from their launcher.

Only this package and the training scripts of `demo` and `doctor` import torch. `launch` puts the folder ``inject`` on
``PYTHONPATH``; its ``sitecustomize.py`` starts the recording when a script imports DDP.
"""
