"""Runs beside each other: read (runs), compared (statistics, compare), shown as one HTML page (page)."""
