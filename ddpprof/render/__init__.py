"""Output of a `Report` as text for a terminal, Markdown, a page, JSON, Perfetto and TensorBoard.

Its numbers are the report's; where a table shows a mean, it is one over the steps in `Report.averaged`.

sections/           the content, order and words of a report, which terminal, Markdown and pages draw
html/               pages of one file each
tensorboard/        event files
error_words.py      what to do about errors of DDP, its backends and launchers
glossary.py         the meaning of all terms
hang_words.py       the verdict on a job that hangs or has failed, in words
json.py             reports, comparisons and experiments as JSON, and back from JSON to a report
json_documents.py   every document that ddpprof writes as JSON, and its JSON Schema
killed_words.py     Which signal ended a process or its worker, and who sent it
markdown.py         rendering of sections as GitHub-flavoured Markdown
notebook.py         reports, comparisons and predictions in a notebook: HTML without scripts, and a few lines of text
perfetto.py         rendering of a timeline as JSON for https://ui.perfetto.dev, in Chrome's trace event format
perfetto_tracks.py  the tracks of one rank in Chrome's trace event format: slices, flows, counters, and their names
plot.py             plots of sweeps, scaling experiments and predictions, with matplotlib
slowdown_words.py   slow-downs and pauses in sentences
terminal.py         rendering of sections in a terminal with rich, or as plain text
top.py              the live view of a job: ranks sorted by what the user asks for, and who waits for whom
"""
