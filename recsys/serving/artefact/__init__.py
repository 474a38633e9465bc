"""An exported model in a folder: read, checked, run and verified without torch."""

from recsys.serving.artefact.folder import Artefact
from recsys.serving.artefact.load import load

__all__ = ["Artefact", "load"]
