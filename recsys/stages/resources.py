"""Resources that the parts of a pipeline share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recsys.stages.catalogue import Catalogue
from recsys.stages.open_models import Models
from recsys.stages.visitor import Events
from recsys.store.request_features import OnlineFeatures


@dataclass(frozen=True)
class Resources:
    """Resources that the parts of a pipeline share.

    catalogue: the items
    user, context: names of the columns of users and of requests
    events: what users did, None if requests bring their histories
    models: loads models
    sources: names of the sources
    items: stored features of items, or None
    """

    catalogue: Catalogue
    models: Models
    user: Sequence[str] = ()
    context: Sequence[str] = ()
    events: Events | None = None
    sources: Sequence[str] = ()
    items: OnlineFeatures | None = None
