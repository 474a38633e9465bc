"""The batcher alone: what is computed together, in which order, and what fails with whom."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import fake_models
import numpy as np
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.online.row_error import RowError
from recsys.online.servable import Query
from recsys.server.batcher import Batcher, BatchLimits, Work
from recsys.server.payloads import ColumnsPayload, Payload, QueriesPayload, RowsPayload, TensorsPayload
from recsys.server.request_error import RequestError


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # the loop of the server


def scorer(seconds: float = 0.0) -> fake_models.Scorer:
    return fake_models.Scorer("ctr", "1", seconds=seconds)


def rows(*values: object) -> RowsPayload:
    return RowsPayload([{"a": v} for v in values])


def probability(*values: float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.array(values)))


async def outcomes(works: list[Work]) -> list[object]:
    return await asyncio.gather(*(w.future for w in works), return_exceptions=True)


@pytest.mark.parametrize("inline", [True, False])
def test_requests_that_wait_are_one_batch_and_get_their_own_outputs(inline: bool) -> None:
    async def test() -> None:
        model = scorer()
        batcher = Batcher(model, BatchLimits(inline=inline))
        if inline:
            await batcher.warm_up(RowsPayload([{}]))
            await batcher.warm_up(RowsPayload([{}] * 5))
        model.batches.clear()
        works = [batcher.submit(rows(1)), batcher.submit(rows(2, 3)), batcher.submit(rows(-1, 0))]
        found = await outcomes(works)
        for outputs, expected in zip(found, [probability(1), probability(2, 3), probability(-1, 0)], strict=True):
            np.testing.assert_allclose(outputs["p"], expected, rtol=1e-6)  # type: ignore[index]
        assert model.batches == [5] and batcher.waiting_rows == 0

    run(test)


def test_a_batch_has_at_most_its_rows_but_for_one_larger_request() -> None:
    async def test() -> None:
        model = scorer()
        batcher = Batcher(model, BatchLimits(rows=4))
        await outcomes([batcher.submit(rows(*range(n))) for n in (3, 2, 2, 9, 1)])
        assert model.batches == [3, 4, 9, 1]

    run(test)


def test_what_comes_while_the_model_is_busy_is_the_next_batch() -> None:
    async def test() -> None:
        model = scorer(seconds=0.05)
        batcher = Batcher(model, BatchLimits())
        works = [batcher.submit(rows(1))]
        await asyncio.sleep(0.02)
        works += [batcher.submit(rows(n)) for n in range(5)]
        await outcomes(works)
        assert model.batches == [1, 5]

    run(test)


def test_a_full_queue_refuses_and_accepts_again_later() -> None:
    async def test() -> None:
        batcher = Batcher(scorer(seconds=0.05), BatchLimits(rows=1, queue=3))
        works = [batcher.submit(rows(1, 2, 3, 4))]  # larger than the queue, but the first
        with pytest.raises(
            RequestError, match=r"^the queue of the model is full \(4 rows wait\); try again later$"
        ) as e:
            batcher.submit(rows(1))
        assert e.value.status == 429
        await asyncio.sleep(0.02)
        works += [batcher.submit(rows(n)) for n in range(3)]
        with pytest.raises(RequestError):
            batcher.submit(rows(1))
        assert not any(isinstance(o, Exception) for o in await outcomes(works))

    run(test)


def test_expired_and_abandoned_work_is_not_computed() -> None:
    async def test() -> None:
        model = scorer(seconds=1.0)
        batcher = Batcher(model, BatchLimits(rows=1))
        now = asyncio.get_running_loop().time()
        works = [batcher.submit(rows(1)), batcher.submit(rows(2), now + 0.03), batcher.submit(rows(3))]
        abandoned = batcher.submit(rows(4))
        abandoned.future.cancel()
        started = time.monotonic()
        with pytest.raises(RequestError, match="the deadline has passed before the model has answered") as e:
            await works[1].future
        assert e.value.status == 504 and time.monotonic() - started < 0.9  # it does not wait for the model
        await outcomes([works[0], works[2]])
        assert len(model.batches) == 2 and batcher.waiting_rows == 0
        with pytest.raises(RequestError, match="before the request was queued"):
            batcher.submit(rows(1), now)

    run(test)


def test_a_delay_collects_rows_until_there_are_enough() -> None:
    async def test() -> None:
        model = scorer()
        batcher = Batcher(model, BatchLimits(rows=100, delay=0.3, preferred=(4, 8)))
        started = time.monotonic()
        works = [batcher.submit(rows(1))]
        await asyncio.sleep(0.01)
        works.append(batcher.submit(rows(2)))
        await outcomes(works)
        assert model.batches == [2] and 0.25 < time.monotonic() - started < 5
        started = time.monotonic()
        await outcomes([batcher.submit(rows(n)) for n in range(11)])
        assert model.batches == [2, 8, 3]  # 8 at once, the rest after the delay
        assert 0.25 < time.monotonic() - started < 5

    run(test)


def test_kinds_of_payloads_are_computed_apart() -> None:
    async def test() -> None:
        model = scorer()
        batcher = Batcher(model, BatchLimits())
        arrays = [np.array([[n, 1]], np.float32) for n in range(3)]
        works = [
            batcher.submit(rows(1)),
            batcher.submit(ColumnsPayload({"a": [1.0, 2.0]}, 2)),
            batcher.submit(TensorsPayload({"values": arrays[0]}, 1)),
            batcher.submit(ColumnsPayload({"b": ["b7"]}, 1)),
            batcher.submit(TensorsPayload({"values": arrays[1]}, 1)),
            batcher.submit(TensorsPayload({"values": arrays[2].astype(np.float64)}, 1)),
        ]
        found = await outcomes(works)
        assert sorted(model.batches) == [1, 2, 3]
        np.testing.assert_allclose(found[1]["p"], probability(1, 2), rtol=1e-6)  # type: ignore[index]
        np.testing.assert_allclose(found[3]["p"], probability(0.7), rtol=1e-6)  # type: ignore[index]
        np.testing.assert_allclose(found[4]["p"], probability(2), rtol=1e-6)  # type: ignore[index]
        assert str(found[5]) == "input values: has shape [1, 2] of float64; send FP32 of [rows, 2]"

    run(test)


def test_rows_that_depend_on_others_are_not_merged_with_those_of_other_requests() -> None:
    async def test() -> None:
        model = scorer()
        model.rows_depend_on_others = True
        batcher = Batcher(model, BatchLimits())
        payloads: list[Payload] = [
            rows(1, 2),
            rows(3),
            ColumnsPayload({"a": [1.0]}, 1),
            ColumnsPayload({"a": [2.0]}, 1),
        ]
        await outcomes([batcher.submit(p) for p in payloads])
        assert model.batches == [2, 1, 1, 1]

    run(test)


def test_a_model_that_returns_too_few_rows_fails_and_the_queue_goes_on() -> None:
    class Short(fake_models.Scorer):
        def run(self, features: fake_models.FakeFeatures) -> dict[str, np.ndarray]:
            return {"p": super().run(features)["p"][:1]}

    async def test() -> None:
        batcher = Batcher(Short("ctr", "1"), BatchLimits())
        found = await outcomes([batcher.submit(rows(1)), batcher.submit(rows(2))])
        np.testing.assert_allclose([o["p"][0] for o in found], probability(1, 2), rtol=1e-6)  # type: ignore[index]
        assert batcher.waiting_rows == 0

    run(test)


def test_queries_are_merged_and_divided() -> None:
    async def test() -> None:
        batcher = Batcher(fake_models.Recommender("items", "1"), BatchLimits())
        one = batcher.submit(QueriesPayload([Query([{"item": "item0"}], k=2)]))
        two = batcher.submit(QueriesPayload([Query([], k=1), Query([], k=3, exclude=["item1"])]))
        assert [items for items, _ in await one.future] == [["item1", "item2"]]
        assert [items for items, _ in await two.future] == [["item0"], ["item0", "item2", "item3"]]

    run(test)


@settings(deadline=None)  # a busy machine
@given(
    st.lists(st.lists(st.floats(-30, 30, width=32) | st.just("x"), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 9),
)
def test_every_request_gets_what_it_would_get_alone(requests: list[list[Any]], most: int) -> None:
    """Its outputs, or the error of its own row."""

    async def test() -> None:
        batcher = Batcher(scorer(), BatchLimits(rows=most))
        payloads: list[Payload] = [
            rows(*r) if i % 2 else ColumnsPayload({"a": r}, len(r)) for i, r in enumerate(requests)
        ]
        found = await outcomes([batcher.submit(p) for p in payloads])
        for outputs, request in zip(found, requests, strict=True):
            if "x" in request:
                assert isinstance(outputs, RowError)
                assert (outputs.row, outputs.column) == (request.index("x"), "a")
                continue
            alone = scorer().run(scorer().features([{"a": a} for a in request]))
            np.testing.assert_array_equal(outputs["p"], alone["p"])  # type: ignore[index]

    run(test)


@pytest.mark.parametrize(("seconds", "thread"), [(0.0, "MainThread"), (0.01, "model_0")])
def test_short_batches_run_in_the_event_loop_and_long_ones_do_not(seconds: float, thread: str) -> None:
    class Spy(fake_models.Scorer):
        threads: list[str] = []  # noqa: RUF012

        def run(self, features: fake_models.FakeFeatures) -> dict[str, np.ndarray]:
            self.threads.append(threading.current_thread().name)
            return super().run(features)

    async def test() -> None:
        model = Spy("ctr", "1", seconds=seconds)
        batcher = Batcher(model, BatchLimits())
        await batcher.warm_up(RowsPayload([{}]))
        for _ in range(30):  # on a busy machine, a short batch may take long a few times
            await batcher.submit(rows(1)).future
        assert model.threads[-1] == thread

    run(test)
