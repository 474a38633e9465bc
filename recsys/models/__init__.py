"""Models: one file here and one YAML file in conf/model/ each. protocols.py defines the three kinds."""
