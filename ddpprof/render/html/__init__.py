"""Rendering of reports, comparisons and experiments as one HTML file each, which only needs a browser."""
