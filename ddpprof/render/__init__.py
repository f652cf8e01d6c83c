"""Output of a `Report` as text for a terminal, Markdown, a page, JSON, Perfetto and TensorBoard. It computes nothing.

sections/     the content, order and words of a report, which terminal, Markdown and pages draw
html/         pages of one file each
tensorboard/  event files
glossary.py   the meaning of all terms
"""
