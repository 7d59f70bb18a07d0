"""The weights that a network begins with: renamed, held against the network, and kept in a run's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from selfsame.config.recipe import NetPart
from selfsame.engine.checkpoint import read_tensors, sealed
from selfsame.engine.weight_files import Tensors, Weights
from selfsame.errors import SelfsameError
from selfsame.files import in_order, write
from selfsame.nets.frozen import fold, without_statistics
from selfsame.nets.learned import Learned
from selfsame.nets.tied import fill, under_first_names
from selfsame.nets.whitened import LAYER

KEPT = "start.safetensors"  # in a run's folder: the network that it began with
_FORMAT = "selfsame-start-1"
_NAMED = 4  # tensors of a kind that an error names


def renamed(tensors: Iterable[str], names: Mapping[str, str], where: str) -> dict[str, str]:
    """The file's names and this network's: the longest beginning that is in the map is replaced."""
    out = {}
    for name in tensors:
        old = max((key for key in names if name.startswith(key)), key=len, default="")
        out[name] = names[old] + name[len(old) :] if old in names else name
    idle = [key for key in names if not any(name.startswith(key) for name in out)]
    if idle:
        raise SelfsameError(f"{where}: no tensor's name begins with {_few(idle)} (net.rename)")
    return out


def _left(net: nn.Module, part: NetPart, weights: Weights) -> Tensors:
    """The file's tensors under the network's names, without those whose name, before or after, is left out."""
    names = renamed(weights.tensors, part.rename, str(weights.file))
    _check_skip(net, part, weights, {*names, *names.values(), *weights.others})
    skip = (*part.skip, *getattr(net, "unused", ()))
    out: Tensors = {}
    for old, new in names.items():
        if _matches(old, skip) or _matches(new, skip):
            continue
        if new in out:
            raise SelfsameError(f"{weights.file}: net.rename gives two tensors the name {new}")
        out[new] = weights.tensors[old]
    return out


def _check_skip(net: nn.Module, part: NetPart, weights: Weights, names: set[str]) -> None:
    """Refuse patterns that leave out nothing of the file's names and the network's, or everything."""
    own = {name for name, _ in net.named_parameters()}
    idle = [pattern for pattern in part.skip if not any(_matches(name, (pattern,)) for name in names | own)]
    if idle:
        raise SelfsameError(f"{weights.file}: nothing in it or in the network is called {_few(idle)} (net.skip)")
    if all(_matches(name, part.skip) for name in own):
        raise SelfsameError(f"{weights.file}: net.skip leaves out all of the network, so that nothing would be read")


def load_weights(net: nn.Module, part: NetPart, weights: Weights) -> None:
    """Put the weights into the network, all of them, or say in one line what does not fit."""
    if part.digest and part.digest != weights.digest:
        raise SelfsameError(
            f"{weights.file}: not the file that the recipe names (SHA-256 {weights.digest[:12]}..., net.digest is "
            f"{part.digest[:12]}...)"
        )
    where = str(weights.file)
    given = under_first_names(net, _left(net, part, weights), where)
    wanted = {name: value for name, value in net.named_parameters() if not _matches(name, part.skip)}
    lacks = [] if weights.ours else without_statistics(net, wanted, given)
    if lacks:
        raise SelfsameError(
            f"{where}: holds no statistics of batch norms, without which they cannot be frozen: {_few(lacks)} missing; "
            "save all of the network's state_dict()"
        )
    given = {name: value for name, value in fold(net, given).items() if not _matches(name, part.skip)}
    if set(LAYER) & set(given) - set(wanted):
        raise SelfsameError(
            f"{where}: was whitened, and training goes on without that layer; start with the run that it was made of, "
            'or leave the layer out (net.skip = ["whitening_*"]) and whiten the new run'
        )
    _check_fit(where, given, wanted)
    fill(net, given)
    odd = next((name for name, value in net.named_parameters() if not bool(torch.isfinite(value).all())), None)
    if odd is not None:  # a variance of 0, or a number too large for float32
        raise SelfsameError(f"{where}: {odd} would not be finite in the network")


def check_drawn(net: nn.Module, part: NetPart, learned: Learned | None) -> None:
    """Refuse a layer that is drawn at random, since the weights are not read, and that would stay so."""
    if learned is None:
        return
    learning = {*learned.names, *learned.ranks, *LAYER}
    still = [name for name, _ in net.named_parameters() if _matches(name, part.skip) and name not in learning]
    if still:
        raise SelfsameError(
            f"net.skip: {_few(still)} would be drawn at random and stay so, since net.train leaves them out; add them "
            "to net.train, or read them from the file"
        )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_fit(where: str, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    missing = [name for name in wanted if name not in given]
    surplus = [name for name in given if name not in wanted]
    other = [
        f"{name} {_size(given[name])} in place of {_size(value)}"
        for name, value in wanted.items()
        if name in given and given[name].shape != value.shape
    ]
    said = [
        f"{len(names)} {kind} ({_few(names)})"
        for kind, names in (("missing", missing), ("surplus", surplus), ("misshapen", other))
        if names
    ]
    if said:
        raise SelfsameError(
            f"{where}: does not fit the network: {', '.join(said)}; net.rename maps names, net.skip leaves some out"
        )


def _size(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "number"


def _few(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def keep_start(views: Mapping[str, Tensor], digest: str, path: Path) -> None:
    """Write the network that a run begins with, so that nothing else is needed to go on with it."""
    tensors = {f"net.{name}": value.detach().to("cpu").contiguous() for name, value in views.items()}
    meta = {"format": _FORMAT, "of": digest}
    write(path, in_order(save(tensors, metadata=sealed(tensors, meta))))


def network_digest(views: Mapping[str, Tensor]) -> str:
    """What the server and its devices call a first network by: its names, shapes and numbers in float32."""
    total = hashlib.sha256()
    for name, value in sorted(views.items()):
        total.update(json.dumps([name, list(value.shape)]).encode())
        total.update(value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return total.hexdigest()


def load_kept(net: nn.Module, path: Path) -> None:
    """Put the network that a run began with into `net`, which may lack the layer that was put behind it later."""
    found, meta = read_tensors(path)
    if meta.get("format") != _FORMAT:
        raise SelfsameError(f"{path}: not the start of a run (format {meta.get('format')!r})")
    wanted = dict(net.named_parameters())
    given = {name.removeprefix("net."): value for name, value in found.items()}
    given = {name: value for name, value in given.items() if name in wanted or name not in LAYER}
    _check_fit(str(path), given, wanted)
    fill(net, given)
