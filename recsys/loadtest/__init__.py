"""Load tests of servers of the open inference protocol v2: how fast a server answers, and how much it can take.

`measure_loads.py` asks the server for the model's inputs (target.py), encodes requests of real rows (encode_tensors.py,
requests.py), and has client_processes.py send them (drive.py, over http_connection.py or
grpc_target.py). The figures (figures.py) are printed and written (load_page.py).
"""
