"""An exported model in a folder: read, checked, run and verified without torch."""

from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.load_artefact import load

__all__ = ["Artefact", "load"]
