"""python -m recsys.serve MODEL [port=8000] [grpc_port=8001] [workers=1]

Serves an exported model, or a folder of models NAME/VERSION, over HTTP and gRPC: JSON, the open inference protocol v2,
metrics, several versions. Ctrl-C or SIGTERM ends the server once it has answered what it has.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError

USAGE = "python -m recsys.serve MODEL [port=8000] [grpc_port=8001] [workers=1]"


def _command(cfg: DictConfig) -> None:
    from recsys.config.schema_commands import ServeConfig
    from recsys.serving.server.processes import serve

    if OmegaConf.is_missing(cfg, "models"):
        raise UserError(f"no model given; usage: {USAGE}")
    settings = OmegaConf.to_object(cfg)
    assert isinstance(settings, ServeConfig)
    serve(settings)


def main() -> None:
    """Run the command with sys.argv, which has a folder or model=FOLDER. A folder's name may contain a =."""
    cli.check_flags()
    words = [a for a in sys.argv[1:] if not a.startswith("-") and ("=" not in a or Path(a).is_dir())]
    rest = [a for a in sys.argv[1:] if a not in words]
    if len(words) > 1:
        sys.exit(cli.say_error(f"{words[1]}: one folder is served; put several models into one folder, NAME/VERSION"))
    quoted = ["model='" + w.replace("\\", "\\\\").replace("'", "\\'") + "'" for w in words]
    sys.argv[1:] = quoted + rest
    cli.run("serve", _command)


if __name__ == "__main__":
    main()
