"""Flower's app runners, fenced: nothing but selfsame's own app runs, whatever was submitted to the SuperLink.

Flower carries code: whoever reaches the control API can submit an app, and every node would run it. The commands that
run apps are found by their names on the path, so a folder of fenced ones before it decides what a node runs. A bundle
is taken where it holds no code and names the apps inside the selfsame that is installed here.
"""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from selfsame.deploy.flower.bundle import TEXT
from selfsame.errors import SelfsameError
from selfsame.files import private_folder, write

FENCED = {  # where each command's own function is, and the module that installs apps for it
    "flwr-clientapp": ("flwr.supernode.cli.flwr_clientapp", "flwr.supernode.runtime.run_clientapp"),
    "flwr-serverapp": ("flwr.superlink.cli.flwr_serverapp", "flwr.superlink.runtime.run_serverapp"),
}
REFUSED = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-simulation")
_HOLDS = {"pyproject.toml", ".info/CONTENT"}
_LONGEST = 1 << 16


def write_guard(folder: Path) -> Path:
    """A folder to put before the path of a SuperNode or SuperLink."""
    private_folder(folder, close=True)
    for name in (*FENCED, *REFUSED):
        text = f'#!/bin/sh\nexec "{sys.executable}" -m {__name__} {name} "$@"\n'
        write(folder / name, text, private=True, executable=True)
    return folder


def check_bundle(content: bytes) -> None:
    """Refuse an app bundle that is not selfsame's own."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            names = bundle.namelist()
            if len(names) != len(_HOLDS) or set(names) != _HOLDS:
                raise SelfsameError(f"app bundle: holds {len(names)} files, among them code; refused")
            if bundle.getinfo("pyproject.toml").file_size > _LONGEST:
                raise SelfsameError("app bundle: too long; refused")
            found = tomllib.loads(bundle.read("pyproject.toml").decode("utf-8"))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError, zlib.error) as error:
        raise SelfsameError("app bundle: cannot be read; refused") from error
    if found != tomllib.loads(TEXT):
        raise SelfsameError("app bundle: not the one of the selfsame that is installed here; refused")


def fence(module: Any) -> None:
    """Let a runner's module install only what `check_bundle` takes."""
    install: Callable[..., Any] = module.install_from_fab

    def checked(content: bytes, *rest: Any, **named: Any) -> Any:
        check_bundle(content)
        return install(content, *rest, **named)

    module.install_from_fab = checked


def main() -> None:
    """Stands in for the command whose name is the first word."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    sys.argv[0] = name
    if name not in FENCED:
        sys.exit(f"{name or 'no command'}: this node runs selfsame's app and no other")
    command, runtime = map(import_module, FENCED[name])
    fence(runtime)
    getattr(command, name.replace("-", "_"))()


if __name__ == "__main__":
    main()
