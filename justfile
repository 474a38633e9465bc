# What CI runs: `just check`. Without just: the same lines by hand.
check: lint security docs test

lint:
    uv run ruff format --check recsys tests benchmarks
    uv run ruff check
    uv run mypy
    uv run lint-imports

# bandit and the search for secrets work offline; pip-audit asks for the known vulnerabilities of what is installed.
security: offline-security
    uv run pip-audit --skip-editable --progress-spinner off

offline-security:
    uv run bandit -q -c pyproject.toml -r recsys benchmarks
    git ls-files -z -- ':!tests/e2e/old_runs' ':!*.png' | xargs -0 uv run detect-secrets-hook

# The site in docs/_build/html, which opens from the folder without a network; a warning is an error.
docs:
    uv run --group docs sphinx-build -q -W -b html docs docs/_build/html

test:
    uv run pytest

slow:
    uv run pytest -m slow
    RECSYS_TEST_EXAMPLES=all uv run pytest --hypothesis-profile=default tests/data tests/models tests/evaluation/test_binary_metrics.py tests/evaluation/test_retrieval_metrics.py \
        tests/losses/test_negatives.py tests/evaluation/test_list_metrics.py

# Install each extra, or `just extras redis otel`, in a fresh environment, and import what it promises. Downloads up to 3 GB.
extras *names=`uv run --no-sync python -c "from recsys.base.packages import EXTRAS; print(*EXTRAS)"`:
    RECSYS_TEST_EXTRAS="{{names}}" uv run pytest -m slow tests/packages/test_extras.py -k installs

# Known packages up to today, or `just lock 2026-11-15`: moves exclude-newer, and writes docs/deploy/constraints.txt.
lock *day:
    .ci/lock {{day}}

# The digest of the base image of docs/deploy, from its registry, through Docker.
digests:
    .ci/digests

# All topics, or `just bench dlrm loader`; `just bench smoke` compares short runs with the recorded ratios.
bench *topics:
    uv run python benchmarks/bench.py {{topics}}
