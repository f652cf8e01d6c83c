"""Rendering of reports, comparisons and experiments as one HTML file each, which needs nothing but a browser.

report_page.py, result_pages.py   content of the pages
page.py, page.html                skeleton of a page, which may load nothing
blocks.py                         sections as HTML
*_charts.py                       charts, as plotly figures
steps.py, timeline.py             numbers that the reader chooses from
page.js, charts.js, timeline.js   interaction with the reader
"""
