"""Continuous training: a registry of versions, the gate that a new version must pass, and checks of new data."""
