"""torch, torchrec and fbgemm are built for one another: refuse another triple before it crashes."""

from importlib.metadata import PackageNotFoundError, version

from recsys.errors import UserError

# torch -> (torchrec, fbgemm), by release series
TRIPLES = {
    "2.11": ("1.6", "1.6"),
    "2.12": ("1.7", "1.7"),
    "2.13": ("1.8", "1.8"),
    "2.14": ("1.9", "1.9"),
}
PINNED = ("2.13.0", "1.8.0", "1.8.0")


def check_versions() -> None:
    """Raises UserError, with the command that mends it, for a missing or mismatched package."""
    torch, torchrec = _series("torch"), _series("torchrec")
    fbgemm = _series("fbgemm-gpu-cpu") or _series("fbgemm-gpu") or _series("fbgemm-gpu-nightly-cpu")
    if torch is None or torchrec is None or fbgemm is None or TRIPLES.get(torch) != (torchrec, fbgemm):
        found = f"torch {torch or 'missing'}, torchrec {torchrec or 'missing'}, fbgemm {fbgemm or 'missing'}"
        want = TRIPLES.get(torch or "")
        torchrec_pin, fbgemm_pin = (f"{want[0]}.*", f"{want[1]}.*") if want else PINNED[1:]
        first = "" if want else f"pip install torch=={PINNED[0]} && "
        raise UserError(
            f"{found} do not fit each other; mend it: {first}pip install --no-deps "
            f"'torchrec=={torchrec_pin}' 'fbgemm-gpu-cpu=={fbgemm_pin}' (with a GPU: fbgemm-gpu); "
            "in a checkout: uv sync"
        )


def _series(package: str) -> str | None:
    try:
        return ".".join(version(package).split(".")[:2])
    except PackageNotFoundError:
        return None
