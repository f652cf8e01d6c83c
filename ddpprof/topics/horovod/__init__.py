"""Horovod: a timeline of what rank 0 saw of every collective, from the file to the words for it."""
