"""Comparison of runs: read (runs), compared (comparison, resampling), and shown as one HTML page (report_page)."""
