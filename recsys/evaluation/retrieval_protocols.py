"""The protocols of retrieval metrics: which candidates targets are ranked against."""

from dataclasses import dataclass

from recsys.evaluation.metrics_table import LISTS


@dataclass(frozen=True)
class Protocols:
    """The candidates that targets are ranked against, and the lengths of the lists that metrics use.

    Args:
        k: lengths of lists.
        protocols: full ranks against every candidate; uniform and popularity rank against sampled candidates, outside
            the history and the targets, with equal weights or by their counts in training. Sampled metrics do not
            estimate the full ones and may order models differently (Krichene & Rendle 2020,
            https://dl.acm.org/doi/10.1145/3394486.3403226).
        negatives: number of candidates sampled for each row, without replacement.
        filter_history: whether `full` excludes the items of a row's history from its ranking, as lists do.
        rank_repeats: whether a target of the history is ranked all the same, as in many papers; otherwise it is missed,
            as in the lists. Only with filter_history.
        seed: seed of the sampling.
        lists: metrics of the lists of the best candidates, measured if `protocols` contains full (`ListMetrics`).
        exposure: features of items; how often these lists show items with each of their values (`by_value.exposure`).
    """

    k: tuple[int, ...] = (5, 10, 20)
    protocols: tuple[str, ...] = ("full",)
    negatives: int = 100
    filter_history: bool = True
    rank_repeats: bool = False
    seed: int = 0
    lists: tuple[str, ...] = ()
    exposure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.lists:
            if name not in LISTS:
                raise ValueError(f"lists: {name} is not a metric of lists; must be any of {', '.join(LISTS)}")
