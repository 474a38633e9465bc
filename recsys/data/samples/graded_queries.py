"""The built-in sample for learning to rank: queries with graded documents, as in LETOR, by a known teacher.

A query has MIN_DOCUMENTS to MAX_DOCUMENTS documents. A document has FEATURES numbers, such as a score of the text,
a number of clicks or an age; some are heavy-tailed. Its grade is from 0 (irrelevant) to 4 (perfect), with

    P(grade > k) = sigmoid(score - CUTS[k]),  k = 0, 1, 2, 3
    score = sum_j a_j z_j + PAIR z_0 z_1 + STEP sign(z_2) + QUERY x (the query's difficulty)

where z_j is the feature's number, standardised after a logarithm if it is heavy-tailed. The difficulty is a feature of
all documents of the query. So E[grade] = sum_k P(grade > k), and no model can have a lower expected root mean squared
error than it.
"""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.samples.draws import Floats, Progress, sigmoid

BLOCK = 2_000  # queries drawn at a time, so that a larger sample begins with the smaller one
MIN_DOCUMENTS, MAX_DOCUMENTS = 5, 20
FEATURES, HEAVY = 10, (3, 4, 5, 6)  # the features whose logarithm is normal
PAIR, STEP, QUERY = 0.7, 0.5, 0.5
CUTS = (0.0, 1.2, 2.4, 3.6)


class GradeTeacher:
    """The teacher of one seed; the module's docstring has the formula."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self._slopes = rng.choice([-1.0, 1.0], FEATURES) * rng.uniform(0.2, 0.8, FEATURES)

    def above(self, z: Floats, difficulty: Floats) -> Floats:
        """Return P(grade > k), (n, 4).

        Args:
            z: (n, FEATURES), the standardised features.
            difficulty: (n,), the difficulty of each document's query.
        """
        score = z @ self._slopes + PAIR * z[:, 0] * z[:, 1] + STEP * np.sign(z[:, 2]) + QUERY * difficulty
        return sigmoid(score[:, None] - np.array(CUTS))


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write the documents of all queries, and what the teacher expects, to `folder`.

        documents.csv    query,document,difficulty,f0, ..., f9,grade: query by query; queries are numbered from 0
        teacher.parquet  grade, grade_expected: in the order of documents.csv

    The same seed gives the same bytes, and a larger file begins with the smaller one. `progress` is called with the
    number of rows written so far.
    """
    teacher, written, block = GradeTeacher(seed), 0, 0
    expectations = [pl.DataFrame(schema={"grade": pl.Int64, "grade_expected": pl.Float64})]
    with (folder / "documents.csv").open("wb") as out:
        while written < rows or not block:
            rng = np.random.default_rng([seed, 1, block])
            sizes = rng.integers(MIN_DOCUMENTS, MAX_DOCUMENTS + 1, BLOCK)
            query, n = np.repeat(np.arange(BLOCK), sizes), int(sizes.sum())
            # as the file shows them, so that a model can know exactly what the teacher knows
            z = np.round(rng.standard_normal((n, FEATURES)), 3)
            difficulty = np.round(rng.standard_normal(BLOCK), 3)[query]
            above = teacher.above(z, difficulty)
            grade = (rng.random(n)[:, None] < above).sum(1)
            columns = {
                "query": block * BLOCK + query,
                "document": np.arange(n) - np.repeat(sizes.cumsum() - sizes, sizes),
            }
            shown = {f"f{j}": np.round(np.exp(z[:, j]), 6) if j in HEAVY else z[:, j] for j in range(FEATURES)}
            frame = pl.DataFrame({**columns, "difficulty": difficulty, **shown, "grade": grade}).head(rows - written)
            frame.write_csv(out, include_header=not block)
            expected = pl.Series("grade_expected", above.sum(1)).head(frame.height)
            expectations.append(frame.select("grade", expected))
            written, block = written + frame.height, block + 1
            progress(written)
    pl.concat(expectations).write_parquet(folder / "teacher.parquet")
