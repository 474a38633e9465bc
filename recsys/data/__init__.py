"""From raw files to batches: sources -> transforms -> prepared Parquet -> loader."""
