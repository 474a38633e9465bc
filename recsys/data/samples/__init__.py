"""The built-in samples. Each module draws a data set by a known rule or teacher, and writes its files."""

from recsys.data.samples import clicks, drifting, graded_queries, interactions, positions, sales, sequences

SAMPLES = {
    "clicks": clicks.write_sample,
    "sequences": sequences.write_sample,
    "interactions": interactions.write_sample,
    "drifting": drifting.write_sample,
    "sales": sales.write_sample,
    "queries": graded_queries.write_sample,
    "positions": positions.write_sample,
}
