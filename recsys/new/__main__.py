"""python -m recsys.new data=mine files='logs/*.csv' [label=clicked] | model=mine | experiment=mine

data= looks at the files and writes conf/data/mine.yaml: how to read them, what each column holds, the label, the
features and the split, each with the reason. model= and experiment= write skeletons. Nothing is overwritten.
"""

from omegaconf import DictConfig, OmegaConf

from recsys import cli


def _command(cfg: DictConfig) -> None:
    from recsys.errors import UserError
    from recsys.new.write import new_data, new_experiment, new_model

    given = {k: v for k, v in cfg.create.items() if v is not None}
    if len(given) != 1:
        found = f"not {' and '.join(f'{k}=' for k in given)}" if given else "such as data=mine files='logs/*.csv'"
        raise UserError(f"recsys.new: type exactly one of data=NAME, model=NAME and experiment=NAME, {found}")
    [(kind, name)] = given.items()
    if kind == "data":
        files = OmegaConf.to_container(cfg.files) if OmegaConf.is_list(cfg.files) else cfg.files
        new_data(name, files, cfg.label)
        return
    for key, unset in (("files", None), ("label", "auto")):
        if cfg[key] != unset:
            raise UserError(f"{key}={cfg[key]}: applies only to data=NAME; leave it out")
    (new_model if kind == "model" else new_experiment)(name)


def main() -> None:
    """Run the command with the overrides of sys.argv."""
    cli.run("new", _command)


if __name__ == "__main__":
    main()
