"""Models for devices, from what a user names: a model file, or the folder of a run, which takes the training part."""

from __future__ import annotations

from pathlib import Path

from selfsame.device.embedder import Embedder, OnnxEmbedder, check_digest
from selfsame.device.model_file import read_bytes
from selfsame.errors import SelfsameError


def open_model(path: Path, digest: str | None = None, trust_code: bool = False, data: Path | None = None) -> Embedder:
    """The embedder of a model file (.onnx) or of a run's folder, after all that can be wrong with it is checked.

    A model whose digest is not `digest`, where one is given, is refused: that pins one for good. A run's folder that
    names code by its import path is refused unless `trust_code`; `data` is where its data lies now, if it has moved.
    """
    path = Path(path)
    if not path.is_dir():
        if data is not None:
            raise SelfsameError(f"--path: {path} is a model file, which needs no data; leave it out")
        return OnnxEmbedder(read_bytes(path), str(path), digest)
    from selfsame.export.trained import RunEmbedder

    found = RunEmbedder(path, trust_code, data)
    check_digest(found.card, str(path), digest)
    return found
