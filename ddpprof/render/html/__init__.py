"""Rendering of reports, comparisons and experiments as one HTML file each, which needs nothing but a browser.

report_page.py, result_pages.py   content of the pages
page.py, page.html                skeleton of a page, which may load nothing
blocks.py                         sections as HTML
*_charts.py                       charts, as plotly figures
steps.py, timeline.py             numbers that the reader chooses from
page.js, charts.js, timeline.js   interaction with the reader, which start.js begins
address.js                        the step and ranks in the address
chart.py                          A chart: a plotly figure without colours
definitions.py                    Definitions of all terms at the end of every page; the terms in tables link to them
embed.py                          How do data and scripts get into a page without becoming markup?
lanes.py                          Which spans of a timeline can be told apart?
report_charts.py                  Charts for a run's page: many ranks, buckets, collectives, slowed kernels
whole_run_chart.py   Chart of the whole run: the length of steps over time
result_charts.py                  Charts of comparisons and experiments
"""
