"""Ordinary training scripts for ``ddpprof demo``. They know nothing of ddpprof and can run on their own.

train_convnet.py      train a small convolutional network with BatchNorm on synthetic images
train_transformer.py  train a small transformer encoder to fill in hidden tokens, with DistributedDataParallel
"""
