"""A run in TensorBoard: native data, which need neither plugin nor network, and the data for its profiler plugin.

native.py        all of the native data: one TensorBoard run per rank, and one, ``run``, for data of all ranks
event_file.py    writer of TensorBoard's event files that does not use tensorflow, even if it is installed
heat_map.py      rank × step as a picture: the darker a cell, the longer the time
histograms.py    durations of the collectives of each step: one histogram per kind of collective, step and rank
hparams.py       settings of DDP and of the job as hyperparameters, and medians over steps as metrics
chart_groups.py  groups of lines that TensorBoard's custom scalars draw into one chart
plugin_view.py   input of torch-tb-profiler's views that makes them equal the report: steps and collectives
scalars.py       numbers of each step of one rank, under the same tags for every rank
text.py          the report as text, in TensorBoard's dialect of Markdown
"""
