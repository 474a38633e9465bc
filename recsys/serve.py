"""python -m recsys.serve MODEL [port=8000] [grpc_port=8001] [workers=1]
python -m recsys.serve pipeline=FILE.yaml [overrides=[root=DIR]]

Serves an exported model, a folder of models NAME/VERSION, or a pipeline of stages, over HTTP and gRPC: JSON, the open
inference protocol v2, metrics, several versions. Ctrl-C or SIGTERM ends the server once it has answered what it has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import MISSING

from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.overrides import quoted
from recsys.schema.command_schemas import ServeConfig

USAGE = "python -m recsys.serve MODEL [port=8000] [grpc_port=8001] [workers=1]"


def _command(cfg: ServeConfig) -> None:
    from recsys.server.supervisor import serve

    if cfg.pipeline_file is None:
        if cfg.models == MISSING:
            raise UserError(f"no model given; usage: {USAGE}")
        if cfg.overrides:
            raise UserError(f"overrides={cfg.overrides}: applies to a pipeline; leave it out")
        serve(cfg)
        return
    if cfg.models != MISSING:
        raise UserError(f"pipeline={cfg.pipeline_file}: is served instead of a model; leave out {cfg.models}")
    if cfg.device != "auto":
        raise UserError(f"device={cfg.device}: applies to a model; those of a pipeline are served with device=auto")
    from recsys.stages.served_pipeline import write_folder

    with TemporaryDirectory(prefix="recsys-pipeline-") as folder:
        with command_line.explained(cfg.overrides, "pipeline"):
            write_folder(Path(cfg.pipeline_file), cfg.overrides, Path(folder))
        cfg.models, cfg.loader = folder, "recsys.stages.served_pipeline:load"
        serve(cfg)


def main() -> None:
    """Run the command, whose argument is a folder or model=FOLDER. A folder's name may contain a =."""
    command_line.check_flags(sys.argv[1:])
    folders, rest = command_line.folders_among(sys.argv[1:])
    if len(folders) > 1:
        sys.exit(
            command_line.say_error(
                f"{folders[1]}: one folder is served; put several models into one folder, NAME/VERSION"
            )
        )
    command_line.run("serve", _command, [f"model={quoted(f)}" for f in folders] + rest)


if __name__ == "__main__":
    main()
