"""Checkpoints: one safetensors file with the whole state, written atomically, read with everything checked.

A digest over all tensors and the metadata stands in the file. It finds damage, not forgery.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from selfsame.config.recipe import to_toml
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.files import in_order, write
from selfsame.methods.base import Fields

FORMAT = "selfsame-state-3"
MODEL = "selfsame-model-2"
BEST = "best.safetensors"  # beside the last state: that which validated best
_BEFORE = ("selfsame-state-2", "selfsame-model-1")  # the same without a digest


def save_state(state: State, path: Path) -> None:
    """Write the state to `path`."""
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in state.tensors().items()}
    meta = {
        "format": FORMAT,
        "round": str(state.round),
        "present": str(state.present),
        "losses": json.dumps(state.losses),
    }
    write(path, save(tensors, metadata=sealed(tensors, meta)))


def sealed(tensors: Fields, meta: Mapping[str, str]) -> dict[str, str]:
    """The metadata with the digest of a file that holds both."""
    return {**meta, "digest": _digest(tensors, meta)}


def _digest(tensors: Fields, meta: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(sorted(meta.items())).encode())
    for name, value in sorted(tensors.items()):
        total.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_tensors(path: Path) -> tuple[Fields, dict[str, str]]:
    """The tensors and metadata of a safetensors file whose digest fits, or one clear line."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = dict(file.metadata() or {})
    except FileNotFoundError:
        raise SelfsameError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise SelfsameError(f"{path}: damaged or not a safetensors file ({error})") from None
    said = meta.pop("digest", None)
    if said is None and meta.get("format") in _BEFORE:
        return tensors, meta
    if said != _digest(tensors, meta):
        raise SelfsameError(f"{path}: damaged, its digest does not fit its content; use a copy, or train anew")
    return tensors, meta


def load_state(state: State, path: Path) -> None:
    """Overwrite `state`, which gives the expected names, shapes and types, with what the file holds."""
    tensors, meta = read_tensors(path)
    if meta.get("format") not in (FORMAT, _BEFORE[0]):
        raise SelfsameError(f"{path}: not a checkpoint of this version (format {meta.get('format')!r})")
    wanted = state.tensors()
    if set(tensors) != set(wanted):
        odd = sorted(set(tensors) ^ set(wanted))
        raise SelfsameError(f"{path}: does not fit the recipe beside it: {', '.join(odd)} missing or unexpected")
    for name, target in wanted.items():
        value = tensors[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise SelfsameError(
                f"{path}: {name} is {tuple(value.shape)} {value.dtype}, the recipe needs "
                f"{tuple(target.shape)} {target.dtype}"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise SelfsameError(f"{path}: {name} holds values that are not finite")
    try:
        round, present = int(meta["round"]), int(meta["present"])
        losses = [float(x) for x in json.loads(meta["losses"])]
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError):
        raise SelfsameError(f"{path}: the checkpoint's round number or losses cannot be read") from None
    if present != state.present:
        raise SelfsameError(f"{path}: {present} clients had registered, the recipe says {state.present}")
    state.round, state.losses = round, losses
    for name, target in wanted.items():
        target.copy_(tensors[name])


def peek(path: Path) -> dict[str, int]:
    """The round and the number of registered clients of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
        return {"round": int(meta["round"]), "present": int(meta["present"])}
    except FileNotFoundError:
        raise SelfsameError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise SelfsameError(f"{path}: damaged or not a checkpoint ({error})") from None


def save_model(problem: Problem, theta_P: Tensor, path: Path) -> None:
    """The network alone, by name, with the recipe beside it: what a device is given."""
    model, theta_P = problem.model, theta_P.detach()
    views = {f"net.{name}": value for name, value in model.net_views(theta_P).items()}
    views |= {f"head.{name}": value for name, value in model.head_views(theta_P).items()}
    tensors = {name: value.to("cpu").contiguous() for name, value in views.items()}
    meta = {"format": MODEL, "recipe": to_toml(problem.recipe)}
    write(path, in_order(save(tensors, metadata=sealed(tensors, meta))))
