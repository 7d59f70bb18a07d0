"""Models for devices, from what a user names: a model file, or the folder of a run, which takes the training part."""

from __future__ import annotations

from pathlib import Path

from selfsame.device.embedder import Embedder, OnnxEmbedder, check_digest
from selfsame.device.model_file import read_bytes


def open_model(path: Path, digest: str | None = None, trust_code: bool = False) -> Embedder:
    """The embedder of a model file (.onnx) or of a run's folder, after all that can be wrong with it is checked.

    A model whose digest is not `digest`, where one is given, is refused: that pins one for good. A run's folder that
    names code by its import path is refused unless `trust_code`.
    """
    path = Path(path)
    if not path.is_dir():
        return OnnxEmbedder(read_bytes(path), str(path), digest)
    from selfsame.export.trained import RunEmbedder

    found = RunEmbedder(path, trust_code)
    check_digest(found.card, str(path), digest)
    return found
