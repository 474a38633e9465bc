"""Relations assert as tests do: with what the two sides were."""

import pytest

pytest.register_assert_rewrite("relations")
