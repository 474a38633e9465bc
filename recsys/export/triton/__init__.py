"""Serve an artefact with NVIDIA Triton: the models of its Python backend, and the repository that names them.

Triton imports these modules in its own processes, where recsys must be installed (extra `serve`).
"""
