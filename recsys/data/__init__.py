"""Turn raw files into batches: sources -> transforms -> prepared Parquet -> loader."""
