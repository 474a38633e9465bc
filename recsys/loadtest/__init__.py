"""Load tests of servers of the open inference protocol v2: how fast a server answers, and how much it can take.

`run.py` asks the server for the model's inputs (target.py), encodes requests of real rows (rows.py, tensors.py,
requests.py), and has processes.py send them (drive.py, over http_connection.py or grpc_connection.py). The figures of
results.py are printed (table.py) and written (write.py, page.py).
"""
