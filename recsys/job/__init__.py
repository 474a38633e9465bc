"""A job's config as objects: the settings of a run, its kind, and the rules that hold between its parts."""
