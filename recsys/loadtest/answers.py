"""Answers of a server under test: each must have the rows, the outputs and the finite numbers of an answer."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from recsys.loadtest.encode_tensors import NUMPY

MAX_BYTES = 64 * 2**20  # of an answer
WRONG, OTHER, LARGE = "wrong answer", "other values", "answer too large"  # kinds of errors
RELATIVE, ABSOLUTE = 1e-3, 1e-5  # tolerance: of sums in another order, as in batches of other sizes
SAMPLE = 4  # one of so many answers that differ has its values compared
NO_ANSWER = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, struct.error)
Values = Mapping[str, Any]  # outputs by name: arrays of numbers, or lists of texts


@dataclass(frozen=True)
class ExpectedAnswer:
    """What the answers to requests must have.

    rows: number of rows or, for retrieval, of queries; None for any
    outputs: datatypes of the model's outputs by name; none if the server does not say
    retrieval: whether `rows` asks for recommendations
    same_values: whether answers to the same request must have the same values
    """

    protocol: str = "http"
    rows: int | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    retrieval: bool = False
    same_values: bool = True


ANY = ExpectedAnswer()


@dataclass(frozen=True)
class AnswerHead:
    """The JSON before binary tensors, which is the same in most answers to a request.

    tensors: name, number of bytes, datatype and shape of each
    """

    text: bytes
    tensors: Sequence[tuple[str, int, str, Sequence[int]]]

    def outputs(self, body: bytes) -> Values:
        """Return the outputs of an answer that begins with this text. Raises ValueError if their bytes do not fit."""
        found, at = {}, len(self.text)
        if at + sum(size for _, size, _, _ in self.tensors) != len(body):
            raise ValueError("the tensors have another size")
        for name, size, datatype, shape in self.tensors:
            found[name] = _shaped(_from_bytes(body[at : at + size], datatype), shape)
            at += size
        return found


class AnswerCheck:
    """Checks answers, most of which are byte for byte those that were checked before."""

    def __init__(self, expected: ExpectedAnswer) -> None:
        self._expected = expected
        self._bodies: dict[int, bytes] = {}
        self._values: dict[int, Values] = {}
        self._heads: dict[int, AnswerHead] = {}
        self._compared = 0  # answers since the last one whose values were compared

    def error(self, request: int, body: bytes) -> str | None:
        """Return the kind of error of an answer, None if it is right. request: its number"""
        if self._bodies.get(request) == body:
            return None
        try:
            head = self._heads.get(request)
            if head is not None and body.startswith(head.text):
                outputs = head.outputs(body)
            else:
                outputs, head = _read(body, self._expected)
                if head is not None:
                    self._heads[request] = head
        except NO_ANSWER:
            return WRONG
        if _problem(outputs, self._expected) is not None:
            return WRONG
        if self._expected.same_values:
            self._compared = (self._compared + 1) % SAMPLE
            if request not in self._values:
                self._values[request] = outputs
            elif not self._compared and not _close(self._values[request], outputs):
                return OTHER
        self._bodies[request] = body
        return None


def problem_of(body: bytes, expected: ExpectedAnswer) -> str | None:
    """Return the reason why an answer is wrong, or None if it is right."""
    try:
        outputs, _ = _read(body, expected)
    except NO_ANSWER as e:
        return f"cannot be read as an answer ({type(e).__name__}): {body[:60]!r}"
    return _problem(outputs, expected)


def _problem(outputs: Values, expected: ExpectedAnswer) -> str | None:
    if not outputs:
        return "has no outputs"
    if missing := [name for name in expected.outputs if name not in outputs]:
        return f"has no output {missing[0]}"
    for name, values in outputs.items():
        if expected.rows is not None and len(values) != expected.rows:
            return f"output {name} has {len(values):,} rows, and the request has {expected.rows:,}"
        if (datatype := expected.outputs.get(name)) and (datatype == "BYTES") == isinstance(values, np.ndarray):
            held = "numbers" if isinstance(values, np.ndarray) else "texts"
            return f"output {name} holds {held}, and the model's metadata say {datatype}"
        if isinstance(values, np.ndarray) and not np.isfinite(values).all():
            return f"output {name} holds values that are not finite numbers"
    return None


def _read(body: bytes, expected: ExpectedAnswer) -> tuple[Values, AnswerHead | None]:
    """Return the outputs of an answer, and its head if all of them are binary.

    Raises one of NO_ANSWER if the body is not an answer.
    """
    if expected.protocol == "grpc":
        return _of_grpc(body), None
    if expected.protocol == "rows":
        answer = orjson.loads(body)
        if expected.retrieval:
            lists = answer.get("recommendations", [answer])
            found: dict[str, Any] = {"items": [list(own["items"]) for own in lists]}
            if lists and "scores" in lists[0]:
                if not all(math.isfinite(float(s)) for own in lists for s in own["scores"]):
                    raise ValueError("a score is not finite")
                found["scores"] = [list(map(float, own["scores"])) for own in lists]
            return found, None
        rows = answer["predictions"]
        if not isinstance(rows, list):
            raise TypeError("predictions")
        if rows and isinstance(rows[0], dict):
            return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}, None
        return {"predictions": np.array(rows, np.float64)}, None  # None is NaN
    text, answer = _divided(body)
    plain, tensors = {}, []
    for output in answer["outputs"]:
        name, datatype, shape = output["name"], output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            plain[name] = _shaped(_plain(output["data"], datatype), shape)
        else:
            tensors.append((name, size, datatype, shape))
    head = AnswerHead(text, tensors)
    return {**plain, **head.outputs(body)}, None if plain else head


def _divided(body: bytes) -> tuple[bytes, Any]:
    """Return the JSON at the start of a body, before binary tensors, and its value."""
    if body[-1:] == b"}":  # most likely without binary tensors
        try:
            return body, orjson.loads(body)
        except ValueError:
            pass
    text = body.decode("utf-8", "surrogateescape")
    answer, end = json.JSONDecoder().raw_decode(text)
    return text[:end].encode("utf-8", "surrogateescape"), answer


def _of_grpc(body: bytes) -> Values:
    from google.protobuf.message import DecodeError
    from tritonclient.grpc.service_pb2 import ModelInferResponse

    try:
        answer = ModelInferResponse.FromString(body)
    except DecodeError as e:
        raise ValueError("is not a ModelInferResponse") from e
    blobs = list(answer.raw_output_contents)
    found = {}
    for i, output in enumerate(answer.outputs):
        contents = [list(values) for _, values in output.contents.ListFields()] or [[]]
        values = _from_bytes(blobs[i], output.datatype) if blobs else _plain(contents[0], output.datatype)
        found[output.name] = _shaped(values, list(output.shape))
    return found


def _plain(values: Any, datatype: str) -> Any:
    """Return values of JSON or of gRPC, flat; missing numbers become NaN."""
    if datatype == "BYTES":
        return list(np.asarray(values, object).ravel())
    return np.array(values, np.float64).ravel()


def _from_bytes(blob: bytes, datatype: str) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(blob, NUMPY[datatype])
    texts, at = [], 0
    while at < len(blob):
        [size] = struct.unpack_from("<I", blob, at)
        texts.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    return texts


def _shaped(values: Any, shape: Sequence[int]) -> Any:
    """Return values by rows. Raises ValueError if the shape does not fit."""
    if not shape or len(values) != math.prod(shape):
        raise ValueError("the shape is another one")
    if isinstance(values, np.ndarray):
        return values.reshape(shape)
    width = len(values) // shape[0] if shape[0] else 0
    return [values[i * width : (i + 1) * width] for i in range(shape[0])]


def _close(first: Values, values: Values) -> bool:
    """Return whether values are the same, within what sums in another order make; items of one score may change."""
    if first.keys() != values.keys():
        return False
    scored = "scores" in first
    for name, own in values.items():
        other = first[name]
        if isinstance(own, np.ndarray) or name == "scores":
            flat = (np.ravel(np.concatenate(v) if isinstance(v, list) and v else v) for v in (other, own))
            left, right = (np.asarray(v, np.float64) for v in flat)
            if left.shape != right.shape or (abs(left - right) > ABSOLUTE + RELATIVE * abs(left)).any():
                return False
        elif not scored and own != other:
            return False
    return True
