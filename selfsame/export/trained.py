"""A trained network as a module of its own: rebuilt from stored parameters, and described by a card."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from selfsame import __version__, methods, nets
from selfsame.config import recipe
from selfsame.config.recipe import Recipe
from selfsame.data import DATASETS, Federation
from selfsame.data import load as load_data
from selfsame.data.fingerprint import check_fingerprint
from selfsame.device import card
from selfsame.device.card import DTYPES, FORMAT, SCORES, Card, Raw
from selfsame.device.embedder import Emb, in_parts
from selfsame.device.model_file import read_bytes
from selfsame.engine.checkpoint import read_tensors
from selfsame.engine.setup import as_seen
from selfsame.errors import SelfsameError
from selfsame.methods import LocalLoss
from selfsame.nets.fastresnet import FastResNet34
from selfsame.nets.mel import WithMel
from selfsame.nets.tied import fill
from selfsame.runs.run import with_data

_CLOSE = 1e-9  # between two computations of a score in float64


class RunEmbedder:
    """The network of a finished run; its data set is loaded to learn how samples are prepared."""

    def __init__(self, folder: Path, trust_code: bool = False, data: Path | None = None) -> None:
        chosen = with_data(recipe.stored_recipe(folder, trust_code), folder, data)
        method = methods.make(chosen.method.name, chosen.method.options)
        if not method.federated:
            raise SelfsameError(f"{folder}: has a network for each client; export one with `selfsame export --client`")
        file = folder / "model.safetensors"
        if not file.is_file():
            raise SelfsameError(f"{folder}: the run has not ended; `selfsame resume {folder}` goes on with it")
        stored = read_bytes(file)
        views = {name.removeprefix("net."): v for name, v in read_tensors(file)[0].items() if name.startswith("net.")}
        loaded = load_data(chosen.data.name, chosen.data.path or None, **chosen.data.options)
        self._federation = as_seen(chosen.net.name, loaded)
        check_fingerprint(self._federation, folder)
        self._net = network(chosen, self._federation, method, views)
        digest = hashlib.sha256(stored).hexdigest()
        width = method.width(chosen.net.width)
        self.card = describe(method, self._federation, self._net, width, rate=rate_of(chosen), digest=digest)

    def embed(self, raw: Raw) -> Emb:
        """Embeddings (S, D) of raw samples (S, *shape)."""
        return in_parts(self.card, raw, self._run)

    def _run(self, raw: Raw) -> Emb:
        with torch.no_grad():
            x = self._federation.scale(torch.from_numpy(raw)).to(torch.float32)
            out: Emb = self._net(x).numpy()
        return out


def network(chosen: Recipe, federation: Federation, method: LocalLoss, views: dict[str, Tensor]) -> nn.Module:
    """The recipe's network in float32 with these parameters."""
    width = method.width(chosen.net.width)
    part = chosen.net
    given = {"started": part.started, "whitened": bool(part.whitened), **part.options}
    net = nets.build(part.name, federation.shape, width, seed=chosen.run.seed, **given)
    wanted = {name: p.shape for name, p in net.named_parameters()}
    if wanted != {name: value.shape for name, value in views.items()}:
        raise SelfsameError(f"{chosen.net.name}: the stored parameters do not fit the recipe beside them")
    fill(net, views)
    if not all(bool(torch.isfinite(p).all()) for p in net.parameters()):
        raise SelfsameError(f"{chosen.net.name}: the stored parameters are not finite")
    return net.eval().requires_grad_(False)


def describe(
    method: LocalLoss,
    federation: Federation,
    net: nn.Module,
    width: int,
    *,
    rate: int = 0,
    opset: int = 0,
    digest: str = "0" * 64,
) -> Card:
    """The card of a network that was trained by this method on this data."""
    dtype = raw_dtype(federation)
    low, high = DTYPES[dtype]
    how, place = comparison(method, width)
    return Card(
        format=FORMAT,
        version=__version__,
        method=method.name,
        data=federation.name,
        shape=(*federation.shape[:-1], -1) if shortest(net) is not None else federation.shape,
        dtype=dtype,
        low=low,
        high=high,
        width=width,
        place=place,
        score=how,
        opset=opset,
        digest=digest,
        variant="float32",
        rate=rate,
        columns=federation.columns,
    )


def rate_of(chosen: Recipe) -> int:
    """Samples a second of the data set's recordings; 0 where it holds none."""
    return int({**DATASETS[chosen.data.name].options, **chosen.data.options}.get("rate", 0))


def shortest(net: nn.Module) -> int | None:
    """The least length of a recording, where it may differ from that of training; None where it may not."""
    return net.front.before + 1 if isinstance(net, WithMel) and isinstance(net.net, FastResNet34) else None


def raw_dtype(federation: Federation) -> str:
    """The type of the federation's raw samples."""
    none = torch.zeros(1, 0, dtype=torch.int64)
    name = str(federation.source.rows(none.new_zeros(1), none).dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise SelfsameError(f"{federation.name}: samples are {name}; a model takes {', '.join(DTYPES)}")
    return name


def comparison(method: LocalLoss, width: int) -> tuple[str, str]:
    """(score, place) by which a card can state the method's comparison: those that agree with it on a few vectors."""
    generator = np.random.default_rng(0)
    emb_SD, template_TD = generator.normal(size=(5, width)), generator.normal(size=(3, width))
    with torch.no_grad():
        score_ST = method.score(torch.from_numpy(emb_SD), torch.from_numpy(template_TD)).numpy()
        template_D = method.template(torch.from_numpy(emb_SD)).numpy()
    for how in SCORES:
        for place in ("unit",) if how == "cosine" else ("unit", "as-is"):
            plain = _plain(how, place, width)
            mine_ST = np.stack([card.score(plain, emb_SD, template) for template in template_TD], 1)
            mine_D = card.template(plain, emb_SD)
            if np.allclose(mine_ST, score_ST, atol=_CLOSE) and np.allclose(mine_D, template_D, atol=_CLOSE):
                return how, place
    raise SelfsameError(f"{method.name}: compares embeddings in a way that no model file can state")


def _plain(how: str, place: str, width: int) -> Card:
    low, high = DTYPES["float32"]
    return Card(FORMAT, "0", "any", "any", (1,), "float32", low, high, width, place, how, 0, "0" * 64, "float32")
