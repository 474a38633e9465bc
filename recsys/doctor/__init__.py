"""python -m recsys.doctor: check the installation and print the command that fixes each problem."""
