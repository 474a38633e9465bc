"""What models see: the features of a data set, batches, labels and candidates."""
