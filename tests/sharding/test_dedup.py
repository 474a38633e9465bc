"""sharding.dedup: the operator that FBGEMM lacks on CPUs, against counting; what it does not go with."""

from itertools import accumulate

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.job.check_built import check_job
from recsys.sharding.dedup import add_cpu_operator


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_distinct_ids_of_tables(features_of_tables: list[int], rows: int, random) -> None:  # type: ignore[no-untyped-def]
    library = add_cpu_operator()
    sizes = [random.randint(1, 6) for _ in features_of_tables]
    first_rows = [
        0,
        *accumulate(x for f, n in zip(features_of_tables, sizes, strict=True) for x in [0] * (f - 1) + [n]),
    ]
    first_features = [0, *accumulate(x for f in features_of_tables for x in [f] + [0] * (f - 1))]
    table = [t for t, f in enumerate(features_of_tables) for _ in range(f)]
    bags = [[random.randrange(sizes[t]) for _ in range(random.randint(0, 3))] for t in table for _ in range(rows)]
    offsets = [0, *accumulate(map(len, bags))]
    ids = [i for bag in bags for i in bag]
    given_tensors = (torch.tensor(x, dtype=torch.int64) for x in (first_rows, first_features, offsets, ids))
    lengths, starts, distinct, places = torch.ops.fbgemm.jagged_unique_indices(*given_tensors)
    assert library is add_cpu_operator() and distinct[places].tolist() == ids
    assert starts.tolist() == [0, *accumulate(lengths.tolist())]
    at, found = 0, list(zip(*[iter(bags)] * rows, strict=True))  # rows bags of each feature
    for t, features in enumerate(features_of_tables):
        of_table = {i for f, own in enumerate(found) if table[f] == t for bag in own for i in bag}
        parts = lengths[table.index(t) * rows : (table.index(t) + features) * rows]
        assert int(parts.sum()) == len(of_table) and int(parts.max() - parts.min()) <= 1
        assert distinct[at : at + len(of_table)].tolist() == sorted(of_table)
        at += len(of_table)
    assert at == len(distinct)


def test_what_dedup_does_not_go_with(capsys: pytest.CaptureFixture[str]) -> None:
    lists = ["model=sasrec", "data=sample_sequences", "sharding.dedup=true"]
    with pytest.raises(UserError, match=r"^optim.sparse.clip=0.1: .* sharding.dedup=true"):
        check_job(compose("train", [*lists, "optim.sparse.clip=0.1"]))
    check_job(compose("train", lists))
    assert "sharding.dedup" not in capsys.readouterr().err
    check_job(compose("train", ["model=dlrm", "data=sample_interactions", "sharding.dedup=true"]))
    assert "no effect on this run: sharding.dedup" in capsys.readouterr().err
