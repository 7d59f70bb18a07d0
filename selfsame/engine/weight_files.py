"""Files of weights that a network begins with: safetensors, .pt, or the folder of a run; nothing in them is run."""

from __future__ import annotations

import hashlib
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from selfsame.engine.checkpoint import read_tensors
from selfsame.errors import SelfsameError

_OURS = ("selfsame-model-", "selfsame-start-")
_CONVERTED = "selfsame-encoder-"  # by `selfsame weights convert`: the network's own names
_INSIDE = ("state_dict", "model_state_dict", "model_state", "model", "net")  # where a .pt file may hold its tensors
_KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Weights:
    """Named tensors and the digest of the file that they come from."""

    file: Path
    tensors: Tensors
    digest: str
    ours: bool = False  # written by selfsame, so that statistics of norms are folded in already
    others: tuple[str, ...] = ()  # names of what a network does not begin with: counters


def read_weights(start: str | Path) -> Weights:
    """The tensors of a safetensors file, of a .pt file, read without running what it holds, or of a run's folder."""
    path = Path(start).expanduser()
    if path.is_dir():
        path = _of_run(path)
    try:
        digest, begins = _sha256(path), _beginning(path)
    except OSError as error:
        named = "a file or a run" if path.is_absolute() else "a file or a run, seen from the current folder"
        raise SelfsameError(f"{path}: cannot be read: {error.strerror}; net.start names {named}") from None
    # By content: endings such as .bin and .ckpt stand for either kind.
    if begins[8:] == b"{":  # before it stands a length, which may begin like anything
        tensors, ours = _from_safetensors(path)
    elif begins.startswith((b"PK\x03\x04", b"\x80")):
        tensors, ours = _from_pickle(path), False
    else:
        raise SelfsameError(f"{path}: neither a safetensors file nor one of PyTorch (.pt)")
    numbers = {name: value for name, value in tensors.items() if value.is_floating_point() or value.is_complex()}
    for name, value in numbers.items():
        _check_numbers(f"{path}: {name}", value)
    others = tuple(name for name in tensors if name not in numbers)
    return Weights(path, numbers, digest, ours, others)


def _beginning(path: Path) -> bytes:
    """The length of a safetensors file's header and its first character; of a .pt file the mark of its kind."""
    with path.open("rb") as file:
        return file.read(9)


def _check_numbers(where: str, value: Tensor) -> None:
    kind = str(value.dtype).removeprefix("torch.")
    if value.dtype not in _KINDS or value.layout != torch.strided:
        known = ", ".join(str(one).removeprefix("torch.") for one in _KINDS)
        raise SelfsameError(f"{where} is {kind}, and a network begins with {known}; convert the file")
    if not bool(torch.isfinite(value).all()):
        raise SelfsameError(f"{where} holds values that are not finite")
    if where.endswith("running_var") and bool((value < 0).any()):
        raise SelfsameError(f"{where} holds negative numbers, which are no variances")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_run(folder: Path) -> Path:
    file = folder / "model.safetensors"
    if file.is_file():
        return file
    if (folder / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: the run has no network yet; `selfsame resume {folder}` goes on with it")
    raise SelfsameError(f"{folder}: not a finished run (no model.safetensors in it)")


def _from_safetensors(path: Path) -> tuple[Tensors, bool]:
    """The tensors, and whether selfsame wrote the file."""
    try:
        with safe_open(path, framework="pt") as file:
            form = (file.metadata() or {}).get("format", "")
            if not form.startswith("selfsame-") or form.startswith(_CONVERTED):
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return found, form.startswith(_CONVERTED)
    except (SafetensorError, OSError, ValueError) as error:
        raise SelfsameError(f"{path}: damaged or not a safetensors file ({error})") from None
    if not form.startswith(_OURS):
        raise SelfsameError(f"{path}: holds no network ({form}); name the folder of its run")
    found, _ = read_tensors(path)
    return {name.removeprefix("net."): value for name, value in found.items() if name.startswith("net.")}, True


def _from_pickle(path: Path) -> Tensors:
    try:
        with path.open("rb") as file, warnings.catch_warnings():  # by its name PyTorch would guess at its kind
            warnings.simplefilter("ignore")  # on how it was pickled
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, BadZipFile, KeyError, OSError) as error:
        more = re.search(r"GLOBAL (\S{1,80}) was not", str(error))
        if more:
            line = f"{path}: holds more than weights: {more[1]}; save its state_dict() alone, which runs nothing"
            raise SelfsameError(line) from None
        raise SelfsameError(f"{path}: damaged, or holds more than weights ({type(error).__name__})") from None
    return _tensors_in(found, path)


def _tensors_in(found: Any, path: Path) -> Tensors:
    """The table of tensors that a .pt file is, or that it holds beside other things, such as a loss."""
    loose = _loose(found)
    inside = {} if not isinstance(found, Mapping) else {str(name): value for name, value in found.items()}
    tables = {name: value for name, value in inside.items() if _loose(value)}
    named = next((name for name in _INSIDE if name in tables), "")
    if named:
        return _tensors_in(tables[named], path)
    if len(tables) == 1:  # whichever holds more numbers
        (other,) = (_loose(value) for value in tables.values())
        loose = max(loose, other, key=lambda table: sum(value.numel() for value in table.values()))
    elif tables and not loose:
        known = ", ".join(_INSIDE)
        raise SelfsameError(f"{path}: several tables of tensors in it ({', '.join(tables)}), and none under {known}")
    if not loose:
        raise SelfsameError(f"{path}: no table of tensors by name in it, nor under {', '.join(_INSIDE)}")
    return loose


def _loose(found: Any) -> Tensors:
    """The tensors of a table that do not stand in tables in it."""
    named = found.items() if isinstance(found, Mapping) else ()
    return {str(name): value.detach() for name, value in named if isinstance(value, Tensor)}
