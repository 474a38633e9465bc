"""python -m recsys.new: write the YAML of a data set from its files, or the skeleton of a model or an experiment."""
