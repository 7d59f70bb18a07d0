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
    from selfsame.device.vault import Vault
    from selfsame.device.verifier import Verifier
    from selfsame.errors import SelfsameError
    from selfsame.export.opened import open_model
    from selfsame.runs.course import Run
    from selfsame.runs.loop import train

_HOMES = {
    "Federation": "selfsame.data",
    "load": "selfsame.data",
    "SelfsameError": "selfsame.errors",
    "Recipe": "selfsame.config.recipe",
    "Run": "selfsame.runs.course",
    "train": "selfsame.runs.loop",
    "open_model": "selfsame.export.opened",
    "Vault": "selfsame.device.vault",
    "Verifier": "selfsame.device.verifier",
}


def __dir__() -> list[str]:
    """The whole interface, also what is not imported yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import selfsame` and `selfsame --help` are quick and need nothing of training."""
    if name not in _HOMES:
        raise AttributeError(f"module 'selfsame' has no attribute {name!r}")
    import importlib

    from selfsame.errors import not_installed

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
