"""Write a vector of each item of Amazon Beauty: its attributes as a row of zeros and ones, weighted by rarity (idf).

python experiments/item_vectors/attribute_vectors.py DIR/Beauty_item2attributes.json attributes.parquet
"""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl


def main(attributes: str, output: str) -> None:
    """Read the attributes of each item and write the columns item and vector."""
    of_item: dict[str, list[int]] = json.loads(Path(attributes).read_text())
    matrix = np.zeros((len(of_item), 1 + max(max(a) for a in of_item.values())), np.float32)
    for row, numbers in enumerate(of_item.values()):
        matrix[row, numbers] = 1
    matrix *= np.log((1 + len(matrix)) / (1 + matrix.sum(axis=0)))
    pl.DataFrame({"item": list(of_item), "vector": matrix.tolist()}).write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
