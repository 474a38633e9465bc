"""Say where a pipeline loses what users want: `python -m recsys.pipeline evaluate`."""
