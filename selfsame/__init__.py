"""selfsame: federated metric learning where every device knows only its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Federation",
    "Recipe",
    "Run",
    "SelfsameError",
    "Vault",
    "Verifier",
    "__version__",
    "load",
    "open_model",
    "train",
]

if TYPE_CHECKING:
    from selfsame.config.recipe import Recipe
    from selfsame.data import Federation, load
    from selfsame.device.embedder import open_model
    from selfsame.device.vault import Vault
    from selfsame.device.verifier import Verifier
    from selfsame.errors import SelfsameError
    from selfsame.runs.loop import train
    from selfsame.runs.run import Run

_HOMES = {
    "Federation": "selfsame.data",
    "load": "selfsame.data",
    "SelfsameError": "selfsame.errors",
    "Recipe": "selfsame.config.recipe",
    "Run": "selfsame.runs.run",
    "train": "selfsame.runs.loop",
    "open_model": "selfsame.device.embedder",
    "Vault": "selfsame.device.vault",
    "Verifier": "selfsame.device.verifier",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import selfsame` and `selfsame --help` are quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'selfsame' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
