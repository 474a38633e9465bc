"""A load test: ask the server about the model, encode requests, and measure each load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.loadtest.answers import ExpectedAnswer, problem_of
from recsys.loadtest.client_processes import Clients, Load
from recsys.loadtest.encode_tensors import check_batch_sizes, check_rows, missing_numbers, read_histories, read_rows
from recsys.loadtest.endpoint import Endpoint, TargetModel, parse_target
from recsys.loadtest.figures import Measurement, measurement
from recsys.loadtest.requests import (
    Encode,
    encode_binary,
    encode_grpc,
    encode_histories,
    encode_json,
    encode_rows,
    make_requests,
)
from recsys.loadtest.server_times import mean_times, reader
from recsys.loadtest.target import HttpTarget
from recsys.schema.command_schemas import LoadTestConfig

if TYPE_CHECKING:
    from recsys.loadtest.grpc_target import GrpcTarget


@dataclass(frozen=True)
class Plan:
    """The requests and their target. requests, expected: and what answers must have, by batch size"""

    settings: LoadTestConfig
    target: HttpTarget | GrpcTarget
    model: TargetModel
    requests: dict[int, list[bytes]]
    expected: dict[int, ExpectedAnswer]
    loads: list[Load]


@dataclass
class Outcome:
    """The measurements of a load test. error: why it has ended before its last load"""

    model: str
    measurements: list[Measurement]
    error: UserError | None = None


def run(settings: LoadTestConfig) -> Outcome:
    """Run a load test.

    Raises:
        UserError: a setting is wrong, or the server, the model or the rows do not fit it. After the first measurement,
            the error is part of the outcome.
    """
    plan = prepare(settings)
    times = reader(plan.target, plan.model.name, settings.metrics)
    outcome = Outcome(plan.model.name or "the only model", [])
    total = len(plan.loads) * (settings.warmup_s + settings.seconds)
    how = (settings.processes, settings.protocol, plan.target.endpoint, settings.timeout_s)
    with bar("load test", total, "s") as progress, Clients(*how) as clients:
        try:
            for load in plan.loads:
                requests, expected = plan.requests[load.batch_size], plan.expected[load.batch_size]
                if settings.warmup_s:
                    clients.measure(load, requests, settings.warmup_s, progress.advance, expected)
                before = times() if times else {}
                timings = clients.measure(load, requests, settings.seconds, progress.advance, expected)
                server = mean_times(before, times()) if times else None
                outcome.measurements.append(measurement(load, settings.seconds, timings, server))
                progress.note = f"{outcome.measurements[-1].rows_per_s:,.0f} rows/s"
        except UserError as e:  # the server has gone
            if not outcome.measurements:
                raise
            outcome.error = e
    return outcome


def prepare(settings: LoadTestConfig) -> Plan:
    """Check the settings, ask the server about the model, encode the requests, and try one of each size.

    Raises:
        UserError: as `run`.
    """
    loads = list(make_loads(settings))
    endpoint = parse_target(settings.target, settings.protocol, settings.token, settings.tls_ca)
    rows, histories = read_rows(Path(settings.rows)), read_histories(Path(settings.rows))
    target: HttpTarget | GrpcTarget
    if settings.protocol == "grpc":
        from recsys.loadtest.grpc_target import GrpcTarget

        target = GrpcTarget(endpoint)
    else:
        target = HttpTarget(endpoint)
    name, version = settings.model_name, settings.version
    if settings.protocol == "rows":  # takes raw rows, whose columns the server checks
        model = TargetModel(name, version, ())
    else:
        target.check()
        model = target.model(name or target.only_model(), version)
    sizes = dict.fromkeys(load.batch_size for load in loads)
    check_rows(model.inputs, rows, model.name or "")
    check_batch_sizes(model.inputs, sizes, model.name or "")
    if histories:
        if settings.protocol != "rows" and any(size > 1 for size in sizes):
            why = "a request of the open inference protocol holds one history"
            raise UserError(f"batch_sizes: {why}; use batch_sizes=[1], or protocol=rows")
        say(f"rows: {len(histories):,} histories of a retrieval model; batch sizes and rows/s count queries")
    in_json = settings.protocol == "http" and not settings.binary
    for column, count in missing_numbers(model.inputs, rows, in_json).items():
        say(f"rows: column {column}: {count:,} missing values are sent as 0; its type, or JSON, has no missing values")
    encode = _make_encoder(settings, endpoint, model, bool(histories))
    requests = {size: make_requests(histories or rows, size, encode) for size in sizes}
    same, any_rows = settings.same_values, bool(histories) and settings.protocol != "rows"  # an output has all items
    expected = {
        size: ExpectedAnswer(settings.protocol, None if any_rows else size, model.outputs, bool(histories), same)
        for size in sizes
    }
    for size, encoded in requests.items():
        reason, body = target.ask(encoded[0])
        if reason is not None:
            hint = "correct rows or batch_sizes" + (", or use protocol=http" if settings.protocol == "rows" else "")
            raise UserError(f"the server refuses a request with batch size {size}: {reason}; {hint}")
        if problem := problem_of(body, expected[size]):
            raise UserError(f"the server's answer to a request with batch size {size} is wrong: it {problem}")
    return Plan(settings, target, model, requests, expected, loads)


def make_loads(settings: LoadTestConfig) -> Iterator[Load]:
    """Yield the loads: rates if there are any, otherwise numbers of connections, for each batch size."""
    for size in dict.fromkeys(settings.batch_sizes):
        for rate in dict.fromkeys(settings.rate):
            yield Load(size, settings.connections, rate, settings.arrivals == "poisson")
        if not settings.rate:
            yield from (Load(size, n) for n in dict.fromkeys(settings.concurrency))


def _make_encoder(settings: LoadTestConfig, endpoint: Endpoint, model: TargetModel, retrieval: bool) -> Encode:
    """Return a function that encodes rows. retrieval: it encodes histories, one for the open inference protocol"""
    if settings.protocol == "rows":
        return partial(encode_histories if retrieval else encode_rows, endpoint, model)
    encode: Encode = partial(encode_binary if settings.binary else encode_json, endpoint, model)
    if settings.protocol == "grpc":
        encode = partial(encode_grpc, model)
    return (lambda histories: encode(histories[0])) if retrieval else encode
