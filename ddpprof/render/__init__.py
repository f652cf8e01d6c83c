"""Output of a `Report` as text for a terminal, Markdown, a page, JSON, Perfetto and TensorBoard.

Its numbers are the report's; where a table shows a mean, it is the mean over the steps in `Report.averaged`.

sections/ the content, order and words of a report, drawn by terminal, Markdown and pages html/ HTML pages, one file
each tensorboard/ event files
"""
