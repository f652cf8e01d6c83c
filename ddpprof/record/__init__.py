"""Record a training job, both in its processes and in the launcher that starts them.

Only this package and the training scripts of `demo` and `doctor` import torch. `launch` puts the folder ``inject`` on
``PYTHONPATH``. The ``sitecustomize.py`` in this folder starts the recording when a script imports DDP.
"""
