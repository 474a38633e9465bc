"""The four stages of a recommender: retrieve candidates, filter them, score them, order them.

    sources.py    where candidates come from; merge.py makes one list of several
    filters.py    what may not be shown
    score.py      a ranking artefact, and a formula over its predictions
    order.py      the list: diversity, calibration, rules; explore.py draws, and logs propensities
    staged.py     the stages of one config, in their order: `StagedRecommender.answers`

`catalogue.py` numbers the items that all stages speak of, `visitor.py` is the user of a request, `expressions.py`
evaluates SQL and formulas, `assemble.py` builds and checks a pipeline, and `evaluate/` says where targets are lost.
"""
