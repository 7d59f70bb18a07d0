"""Models for devices, from what a user names: a model file, or the folder of a run, which takes the training part."""

from __future__ import annotations

from pathlib import Path

from selfsame.device.embedder import Embedder, OnnxEmbedder, check_digest
from selfsame.device.model_file import read_bytes
from selfsame.errors import SelfsameError


def open_model(path: Path, digest: str | None = None) -> Embedder:
    """The embedder of a model file (.onnx) or of a run's folder, after all that can be wrong with it is checked.

    A model whose digest is not `digest`, where one is given, is refused: that pins one for good.
    """
    path = Path(path)
    if not path.is_dir():
        return OnnxEmbedder(read_bytes(path), str(path), digest)
    if not (path / "recipe.toml").is_file():
        raise SelfsameError(f"{path}: not a run (no recipe.toml in it)")
    from selfsame.export.trained import RunEmbedder

    found = RunEmbedder(path)
    check_digest(found.card, str(path), digest)
    return found
