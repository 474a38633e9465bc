"""JSON that others have written: encodings, and how deep it may be nested."""

import json

import pytest

from recsys.files.json_text import MAX_DEPTH, parse_json


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_bytes_are_decoded_as_json_is(encoding: str) -> None:
    assert parse_json('[{"a": "ä"}]'.encode(encoding)) == [{"a": "ä"}]


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_depth(opened: str) -> None:
    def nested(depth: int) -> str:
        return opened * depth + "1" + ("]" if opened == "[" else "}") * depth

    assert parse_json(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    wide = "[" + ",".join(["[1, {}]"] * 100) + "]"
    assert parse_json(wide) == json.loads(wide)
    for depth in (MAX_DEPTH + 1, 500, 100_000):
        with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH} levels"):
            parse_json(nested(depth))
