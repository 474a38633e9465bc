"""The built-in sample of position bias: lists whose items are clicked if they are looked at and then liked.

A list has PLACES items. A ranker that knows a part of what makes an item relevant has sorted it, so that clicks at the
top are of better items, too. An item at place p is looked at with the probability p ** -ETA of the device, and then
clicked with that of its relevance:

    P(click) = p ** -ETA[device] x sigmoid(score),  score = INTERCEPT + sum_j a_j z_j + kind's taste

So the relevance is what a model should predict, and no list of a log shows it alone (Craswell et al., An Experimental
Comparison of Click Position-Bias Models, WSDM 2008).
"""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.samples.draws import Progress, names, sigmoid

BLOCK = 5_000  # lists drawn at a time, so that a larger sample begins with the smaller one
PLACES, FEATURES, KINDS = 10, 5, 40
KNOWN = 3  # the features that the ranker of the log knew
ETA = {"desktop": 0.6, "phone": 1.2}
INTERCEPT = -0.5


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write the items of all lists, and what is known of them, to `folder`.

        impressions.parquet  list,device,position,kind,f0, ..., f4,click: list by list, numbered from 0
        truth.parquet        relevance, examination: probabilities, in the order of impressions.parquet

    The same seed gives the same rows, and a larger file begins with the smaller one. `progress` is called with the
    number of rows written so far.
    """
    rng = np.random.default_rng([seed, 0])
    slopes = rng.choice([-1.0, 1.0], FEATURES) * rng.uniform(0.4, 1.0, FEATURES)
    tastes = rng.standard_normal(KINDS)
    frames, truths, written, block = [], [], 0, 0
    while written < rows:
        rng = np.random.default_rng([seed, 1, block])
        device = rng.integers(0, 2, BLOCK)
        z = np.round(rng.standard_normal((BLOCK, PLACES, FEATURES)), 3)
        kind = rng.integers(0, KINDS, (BLOCK, PLACES))
        ranker = z[..., :KNOWN] @ slopes[:KNOWN] + rng.standard_normal((BLOCK, PLACES))
        order = np.argsort(-ranker, axis=1)
        z, kind = np.take_along_axis(z, order[..., None], 1), np.take_along_axis(kind, order, 1)
        place = np.broadcast_to(np.arange(1, PLACES + 1), (BLOCK, PLACES))
        relevance = sigmoid(INTERCEPT + z @ slopes + tastes[kind])
        examination = place ** -np.array([*ETA.values()])[device][:, None]
        click = rng.random((BLOCK, PLACES)) < examination * relevance
        frame = pl.DataFrame(
            {
                "list": np.repeat(block * BLOCK + np.arange(BLOCK), PLACES),
                "device": np.array([*ETA])[np.repeat(device, PLACES)],
                "position": place.ravel(),
                "kind": kind.ravel(),
                **{f"f{j}": z[..., j].ravel() for j in range(FEATURES)},
                "click": click.ravel().astype(np.int8),
            }
        ).with_columns(names("kind"))
        frames.append(frame.head(rows - written))
        truths.append(
            pl.DataFrame({"relevance": relevance.ravel(), "examination": examination.ravel()}).head(rows - written)
        )
        written, block = written + frames[-1].height, block + 1
        progress(written)
    pl.concat(frames).write_parquet(folder / "impressions.parquet")
    pl.concat(truths).write_parquet(folder / "truth.parquet")
