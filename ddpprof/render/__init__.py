"""A `Report` → terminal, Markdown, page, JSON, Perfetto, TensorBoard. Nothing is computed here.

sections/     what a report says, in which order and words: terminal, Markdown and pages draw these
html/         pages of one file each
tensorboard/  event files
glossary.py   what the terms mean, everywhere
"""
