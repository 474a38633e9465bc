"""YAML that is written with comments is read as it was meant."""

from typing import Any

from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from recsys.new.yaml_text import comment, entry, flow, mapping, scalar


@settings(deadline=None, max_examples=examples(200))
@given(
    st.one_of(
        st.text(max_size=12),
        st.integers(-(10**9), 10**9),
        st.booleans(),
        st.none(),
        st.sampled_from(["1e3", "yes", "null", "~", "0x1", "a: b", "#c", "- d", "\\s+", "'", "2024-01-01", "01:30"]),
    )
)
def test_scalars_are_read_as_they_were(value: Any) -> None:
    assume(not isinstance(value, str) or "${" not in value)
    read = OmegaConf.create("\n".join(entry("key", {"a": value, "b": [value]}, "why # this")))
    assert read.key.a == value and list(read.key.b) == [value] and type(read.key.a) is type(value)
    assert flow([value]) == f"[{scalar(value)}]"


def test_long_values_are_wrapped() -> None:
    value = [f"column_{i}" for i in range(60)]
    lines = entry("columns", value, "the file has no header", "  ")
    assert max(map(len, lines)) <= 120 and lines[0] == "  # the file has no header"
    assert list(OmegaConf.create("\n".join(lines)).columns) == value
    wide = mapping("dense", [(f"x{i}", {"fill": 0}, "why") for i in range(400)])
    assert len(OmegaConf.create("\n".join(wide)).dense) == 400 and len(wide) < 60
    assert all(line.startswith("# ") for line in comment("word " * 100))
