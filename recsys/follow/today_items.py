"""Put items of today into service between trainings: the champion with the items of a file, as a version of its own.

ROOT/items.json     digest of the file, and the version that was the champion when it was read
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.blocks import ITEM
from recsys.data.features.fitted import ITEMS, ROWS
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.scorers import VectorScorer
from recsys.files.atomic import write_json
from recsys.files.json_text import read_json
from recsys.files.manifest import entry_of
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.model_registry import ModelRegistry
from recsys.follow.trainings import export
from recsys.online.new_items import NoNewItems, run_with_items

STATE = "items.json"


def serve_new_items(settings: FollowConfig, registry: ModelRegistry) -> str | None:
    """Promote the champion with the new items of `settings.items`, and return its version; None if there are none.

    Items that it knew keep their vectors, to the bit, so that lists of them stay as they are.

    Raises:
        UserError: the file cannot be read, or its items cannot be added; the champion stays.
    """
    file, root, roles = settings.items, settings.root, registry.aliases()
    champion, run = roles.get("champion"), registry.champion_run()
    if file is None or champion is None or run is None:
        return None
    state = {"file": entry_of(file)[1], "champion": champion}
    if (root / STATE).is_file() and read_json(root / STATE) == state:
        return None
    if "canary" in roles:
        say(f"items={file}: wait until the canary {roles['canary']} has been judged")
        return None
    artefact = root / "cycles" / "items"
    shutil.rmtree(artefact, ignore_errors=True)
    about = next(e for e in registry.summaries() if e["version"] == champion)
    interval = about.get("interval")
    try:
        with run_with_items(str(run), str(file)) as grown:
            export(settings, Path(grown), artefact, interval[1] if interval else None, None)
    except NoNewItems:
        write_json(root / STATE, state)
        return None
    added = _added(registry.artefact(champion), artefact)
    why = f"{added:,} new items of {file.name}; those of {champion} keep their vectors"
    version = registry.register(
        artefact,
        run=run.absolute(),
        parent=champion,
        interval=(interval[0], interval[1]) if interval else None,
        metrics=about.get("metrics") or {},
        why=why,
        items=True,
    )
    registry.promote(version, why)
    write_json(root / STATE, state | {"champion": version})
    shutil.rmtree(artefact, ignore_errors=True)
    say(f"{version}: promoted: {why}")
    return version


def _added(before: Path, after: Path) -> int:
    """Return how many items an artefact has beside those of another one. Raises UserError if a vector has changed."""
    (old, own), (new, found) = _vectors(before), _vectors(after)
    place = {item: i for i, item in enumerate(new)}
    kept = [(i, place[item]) for i, item in enumerate(old) if item in place]
    mine, theirs = (list(x) for x in zip(*kept, strict=True))
    if not np.array_equal(own[mine], found[theirs]):
        raise UserError(f"{after}: vectors of known items differ from those of {before}, so that it is not promoted")
    return len(new) - len(kept)


def _vectors(folder: Path) -> tuple[list[object], np.ndarray]:
    artefact = Artefact.open(folder)
    items = pl.read_parquet(folder / "pipeline" / ITEMS / ROWS, columns=[ITEM])[ITEM][1:].to_list()
    return items, VectorScorer(artefact, 1, exact=True).items
