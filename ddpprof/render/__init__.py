"""Output of a `Report` as text for a terminal, Markdown, a page, JSON, Perfetto and TensorBoard.

Its numbers are the report's; where a table shows a mean, it is one over the steps in `Report.averaged`.

sections/           the content, order and words of a report, which terminal, Markdown and pages draw
html/               pages of one file each
tensorboard/        event files
"""
