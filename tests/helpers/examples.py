"""Say how many examples Hypothesis tries where one of them is dear."""

import os


def examples(whole: int) -> int:
    """Return `whole` under RECSYS_TEST_EXAMPLES=all (`just slow`), and a third of it every day."""
    return whole if os.environ.get("RECSYS_TEST_EXAMPLES") == "all" else whole // 3
