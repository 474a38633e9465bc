"""python -m recsys.doctor: what is installed here, what works, how fast, and the command that mends what does not."""
