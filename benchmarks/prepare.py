"""python benchmarks/prepare.py [ROWS] [ROUNDS]: preparing raw Criteo rows against what any preparation must do.

scan + hash: polars' streaming engine reads every column of the same file and hashes its text (no output).
scan + hash + write: the same, with numbers parsed and ids written to Parquet.
by hand: what `prepare` writes of these rows, as a script of Polars with all text in memory: no digest, no bad rows, no
resuming.
ours: `prepare` from nothing: digest, read, split, fit (log, standardise, vocabularies with a threshold), apply, write.
NVTabular: the same transforms on the first 300,000 rows of the file, so that the topic stays below two minutes.
"""

import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
from omegaconf import OmegaConf
from steady import Claim, Sample, measure, peer, timed

from recsys.base.console import quiet
from recsys.config.compose import conf_dir, object_of
from recsys.data.prepare.prepared import prepare
from recsys.data.samples.clicks import write_sample
from recsys.schema.data_schema import DataConfig

WRITE, BY_HAND = "scan + hash + write", "by hand in Polars"
PEER_ROWS = 300_000


def config(folder: Path) -> DataConfig:
    data = object_of(DataConfig, OmegaConf.load(conf_dir() / "data" / "criteo.yaml"))
    data = replace(data, root=str(folder), prepared=str(folder / "prepared"))
    return data


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample(folder, rows=rows, seed=0)
        peers: dict[str, Callable[[], Sample]] = {}
        if rows >= PEER_ROWS:  # not in smoke
            (folder / "peer").mkdir()
            write_sample(folder / "peer", rows=PEER_ROWS, seed=0)  # the first rows of the file
            peers["NVTabular"] = peer("prepare_nvtabular", folder / "peer" / "train.tsv", PEER_ROWS)
        data = config(folder)
        columns = list(data.source.columns)

        def scan() -> pl.LazyFrame:
            file = folder / "train.tsv"
            return pl.scan_csv(
                file, separator="\t", has_header=False, quote_char=None, new_columns=columns, infer_schema=False
            )

        def bare() -> None:
            scan().select(pl.all().hash().sum()).collect(engine="streaming")

        def written() -> None:
            numbers = [pl.col(c).cast(pl.Float32, strict=False) for c in columns[:14]]
            ids = [(pl.col(c).hash() % 1_000_000).cast(pl.Int32) for c in columns[14:]]
            scan().select(numbers + ids).sink_parquet(folder / "ids.parquet", compression="lz4")

        def by_hand() -> None:
            frame = scan().collect()
            dense = [frame[c].cast(pl.Float32, strict=False).fill_null(0).log1p() for c in columns[1:14]]
            made = [frame[columns[0]].cast(pl.Float32), *((x - x.mean()) / x.std() for x in dense)]
            for c in columns[14:]:
                counts = frame[c].value_counts(sort=True, name="n").drop_nulls().filter(pl.col("n") >= 5)
                ids = counts.select(c, id=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
                joined = frame.select(c).join(ids, on=c, how="left", maintain_order="left")
                made.append(joined["id"].fill_null(0).alias(c))
            pl.DataFrame(made).write_parquet(folder / "by_hand.parquet", compression="uncompressed")

        def ours() -> None:
            shutil.rmtree(folder / "prepared", ignore_errors=True)
            prepare(data)

        measure(
            "prepare",
            f"Preparing {rows:,} raw rows of Criteo's shape, threshold 5; NVTabular {PEER_ROWS:,} of them",
            {
                "recsys.preprocess": timed(ours, rows),
                WRITE: timed(written, rows),
                BY_HAND: timed(by_hand, rows),
                "scan + hash": timed(bare, rows),
            }
            | peers,
            [
                Claim("recsys.preprocess", BY_HAND, 0.9),
                Claim("recsys.preprocess", WRITE),
                Claim("recsys.preprocess", "scan + hash"),
                Claim("recsys.preprocess", "NVTabular", 25),
            ],
            rounds,
            "rows",
        )
    print(f"peak memory of all and of torch {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
