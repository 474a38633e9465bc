"""python -m recsys.train -m model=dlrm,dcnv2 optim.sparse.lr=0.01,0.05: many trials, each run in a process of its own.

space      axes of the search space, from Hydra's overrides
record     sweep.json: the sweep and the state of its trials
watch      progress and outcome of a run, read from its folder
search     the next trial: a grid, random samples, or Optuna's study
processes, slurm     start and end the processes of runs
schedule   starts, watches and ends runs
show       tables and messages
begin, command       the command lines
"""
