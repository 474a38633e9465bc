"""The server of `python -m recsys.serve`: the open inference protocol, JSON for people, metrics, several versions.

A supervisor (supervisor.py) starts workers (server_worker.py). A worker speaks HTTP (app.py, rest_v2.py, json_api.py)
and gRPC (grpc_v2.py); both turn requests into payloads (payloads.py) for the batcher of a model (batcher.py,
served_models.py).
"""
