# What CI runs: `just check`. Without just: the same lines by hand.
check: lint test

lint:
    uv run ruff format --check recsys tests benchmarks
    uv run ruff check
    uv run mypy
    uv run lint-imports

test:
    uv run pytest

slow:
    uv run pytest -m slow
    RECSYS_TEST_EXAMPLES=all uv run pytest tests/data

bench:
    uv run python benchmarks/loader.py
    uv run python benchmarks/train.py
