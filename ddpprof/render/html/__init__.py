"""Reports, comparisons and experiments as one HTML file each, which needs nothing but a browser.

report_page.py, result_pages.py   what stands on a page
page.py, page.html                its skeleton, and what it may load: nothing
blocks.py                         sections as HTML
*_charts.py                       charts, as plotly figures
steps.py, timeline.py             the numbers that the reader chooses from
page.js, charts.js, timeline.js   what answers to the reader
"""
