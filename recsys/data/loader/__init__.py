"""Read prepared data as batches: the order of a split's chunks, the layout of a batch, its copy on a device."""
