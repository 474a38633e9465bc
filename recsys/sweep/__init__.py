"""python -m recsys.train -m model=dlrm,dcnv2 optim.sparse.lr=0.01,0.05: many trials, each run a process of its own.

space      which values are tried, from Hydra's overrides
record     sweep.json: what the sweep is, and how its trials stand
watch      what a run's folder tells of it, while it runs and when it is done
search     which trial comes next: a grid, random draws, Optuna's study
processes, slurm     where runs run, and how they are ended
schedule   starts, watches, ends
show       tables and lines
begin, command       the command lines
"""
