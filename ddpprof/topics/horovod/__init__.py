"""Horovod: a timeline of what rank 0 saw of every collective, from reading the file to the sentences in the report."""
