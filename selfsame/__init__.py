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
    from selfsame.data import Federation, load
    from selfsame.errors import SelfsameError
    from selfsame.recipe import Recipe
    from selfsame.run import Run, train
    from selfsame.verify.embedder import open_model
    from selfsame.verify.vault import Vault
    from selfsame.verify.verifier import Verifier

_HOMES = {
    "Federation": "selfsame.data",
    "load": "selfsame.data",
    "SelfsameError": "selfsame.errors",
    "Recipe": "selfsame.recipe",
    "Run": "selfsame.run",
    "train": "selfsame.run",
    "open_model": "selfsame.verify.embedder",
    "Vault": "selfsame.verify.vault",
    "Verifier": "selfsame.verify.verifier",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import selfsame` and `selfsame --help` are quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'selfsame' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
