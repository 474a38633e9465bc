"""Split MovieLens 100K at random, 75 % of each user's ratings for training and 25 % for testing.

python experiments/movielens_100k_random/split.py DIR OUT SEED   # DIR has ml-100k.inter, .item and .user
"""

import shutil
import sys
from pathlib import Path

import polars as pl


def main() -> None:
    source, target, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    rows = pl.read_csv(source / "ml-100k.inter", separator="\t")
    user = "user_id:token"
    drawn = rows.with_row_index("row").select(user, "row").sample(fraction=1, shuffle=True, seed=seed)
    share = (pl.int_range(pl.len()) / pl.len()).over(user)
    train = drawn.filter(share < 0.75)["row"].sort()
    rows[train.to_list()].write_csv(target / "train.inter", separator="\t")
    rows.with_row_index("row").filter(~pl.col("row").is_in(train.implode())).drop("row").write_csv(
        target / "test.inter", separator="\t"
    )
    for name in ("ml-100k.item", "ml-100k.user"):
        shutil.copyfile(source / name, target / name)


if __name__ == "__main__":
    main()
