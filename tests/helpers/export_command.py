"""recsys.export in this process."""

import pytest

from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import parsed
from recsys.export import __main__ as export


def export_message(*arguments: str) -> str | None:
    """Run the command; return its message if it fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["recsys.export", *arguments])
        try:
            export._command(parsed("export", command_line.named_words(("action", "artefact", "delta"), "")))
        except UserError as e:
            return str(e)
    return None
