"""Rendering of reports, comparisons and experiments as one HTML file each, which needs nothing but a browser."""
