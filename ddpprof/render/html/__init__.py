"""Rendering of reports, comparisons and experiments as one HTML file each, which needs nothing but a browser.

report_page.py      content of a run's page
result_pages.py     content of the pages of comparisons and experiments
page.py             skeleton of a page, which may load nothing: page.html, page.css
blocks.py           sections as HTML
chart.py            a chart: a plotly figure without colours
report_charts.py    charts for a run's page: many ranks, buckets, collectives, slowed kernels
whole_run_chart.py  chart of the whole run: the length of steps over time
result_charts.py    charts of comparisons and experiments
steps.py            numbers of each step and rank, from which the reader chooses
timeline.py         spans of each step and rank, from which the reader chooses
lanes.py            which spans of a timeline can be told apart
definitions.py      definitions of all terms at the end of every page; the terms in tables link to them
embed.py            how data and scripts get into a page without becoming markup
start.js            begins what the reader does with a page: page.js, charts.js, timeline.js
address.js          the step and ranks in the address
"""
