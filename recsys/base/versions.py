"""Check that the versions of torch, torchrec and fbgemm are compatible, with a message instead of a crash at import."""

from importlib.metadata import PackageNotFoundError, version

from recsys.base.errors import UserError

# torch -> (torchrec, fbgemm), by release series
TRIPLES = {
    "2.11": ("1.6", "1.6"),
    "2.12": ("1.7", "1.7"),
    "2.13": ("1.8", "1.8"),
    "2.14": ("1.9", "1.9"),
}
FBGEMM = ("fbgemm-gpu-cpu", "fbgemm-gpu", "fbgemm-gpu-nightly-cpu")
PINNED = ("2.13.0", "1.8.0", "1.8.0")


class VersionMismatch(UserError):
    """The installed versions of torch, torchrec and fbgemm are not compatible.

    problem: which versions are installed
    command: the command that installs compatible versions
    """

    def __init__(self, problem: str, command: str) -> None:
        super().__init__(f"{problem}; run: {command}")
        self.problem, self.command = problem, command


def check_versions() -> None:
    """Raise UserError, with the command to run, for a missing or mismatched package."""
    torch, torchrec = _series("torch"), _series("torchrec")
    fbgemm = next(filter(None, map(_series, FBGEMM)), None)
    if torch is None or torchrec is None or fbgemm is None or TRIPLES.get(torch) != (torchrec, fbgemm):
        installed = f"torch {torch or 'missing'}, torchrec {torchrec or 'missing'}, fbgemm {fbgemm or 'missing'}"
        want = TRIPLES.get(torch or "")
        torchrec_pin, fbgemm_pin = (f"{want[0]}.*", f"{want[1]}.*") if want else PINNED[1:]
        first = "" if want else f"pip install torch=={PINNED[0]} && "
        raise VersionMismatch(
            f"{installed}: these versions are not compatible",
            f"{first}pip install --no-deps 'torchrec=={torchrec_pin}' 'fbgemm-gpu-cpu=={fbgemm_pin}' "
            "(with a GPU: fbgemm-gpu); in a checkout: uv sync",
        )


def describe() -> str:
    """Return the versions of recsys, torch, torchrec and fbgemm on one line."""
    fbgemm = next((p for p in FBGEMM if version_of(p)), FBGEMM[0])
    packages = ("torch", "torchrec", fbgemm)
    return f"recsys {version_of('recsys')} (" + ", ".join(f"{p} {version_of(p) or 'missing'}" for p in packages) + ")"


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _series(package: str) -> str | None:
    found = version_of(package)
    return found and ".".join(found.split(".")[:2])
