"""What a device agrees to when it registers: the method, the network and how they are trained, and what leaves it.

The server writes it once a run; the device hashes it and refuses every later message that is of another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from selfsame import methods, nets
from selfsame.config.recipe import Recipe, RunPart, from_mapping, to_mapping
from selfsame.data import DATASETS
from selfsame.data.clips import HeldClips, MappedClips
from selfsame.data.federation import RAW, SAMPLES, Federation, written_samples
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.problem import Problem
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods import LocalLoss, SplitLoss, World
from selfsame.streams import Stream

_FORMAT = "selfsame-agreement-1"
TRANSPORTS = ("exact", "half")  # how the network travels; everything else travels as it is
DTYPE = {"float32": torch.float32, "float64": torch.float64}
_MOST = 2**24  # clients, classes, numbers along an axis: a device makes tables of such sizes
_PARTS = ("method", "data", "net", "run", "local", "augment")


@dataclass(frozen=True)
class Agreement:
    """The terms of a run, as its devices see them."""

    run: str  # the run's name: random, so that two runs of one recipe differ
    recipe: Recipe  # of `seeded` runs with its seed, of others without
    precision: str  # of the arithmetic, and of what travels exactly
    shape: tuple[int, ...]  # of a sample
    raw: str  # its type
    clips: bool  # whether samples are cut from recordings
    mean: tuple[float, ...]
    std: tuple[float, ...]
    clients: int  # the most there can be
    classes: int
    transport: str
    seeded: bool  # private draws come from the recipe's seed, which the server knows: for trying things out alone
    wire: tuple[tuple[str, str, int, str], ...]  # the method's table

    @staticmethod
    def of(problem: Problem, run: str, transport: str, seeded: bool) -> Agreement:
        """The terms of a problem that the server has prepared."""
        check_method(problem.method)
        if transport not in TRANSPORTS:
            raise SelfsameError(f"transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
        federation, source = problem.federation, problem.federation.source
        none = torch.zeros(1, 0, dtype=torch.int64)
        raw = source.rows(none[:, :0].new_zeros(1), none).dtype
        name = next((name for name, dtype in RAW.items() if dtype == raw), None)
        if name is None:
            raise SelfsameError(f"data: devices read samples of {', '.join(RAW)}, this data set holds {raw}")
        return Agreement(
            run=run,
            recipe=_as_agreed(problem.recipe, seeded),
            precision=str(problem.model.dtype).removeprefix("torch."),
            shape=federation.shape,
            raw=name,
            clips=isinstance(source, HeldClips | MappedClips),
            mean=federation.mean,
            std=federation.std,
            clients=federation.clients,
            classes=federation.classes,
            transport=transport,
            seeded=seeded,
            wire=_wire(problem.method),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives the same terms back."""
        tables = {name: part for name, part in to_mapping(self.recipe).items() if name in _PARTS}
        out = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "recipe"}
        return json.loads(json.dumps({"format": _FORMAT, "recipe": tables, **out}, allow_nan=False))

    @staticmethod
    def from_json(given: dict[str, Any]) -> Agreement:
        """Terms that a server claims, each checked, or one clear line."""
        try:
            found = Agreement(
                run=str(given["run"]),
                recipe=from_mapping({name: given["recipe"][name] for name in _PARTS}),
                precision=given["precision"],
                shape=tuple(given["shape"]),
                raw=given["raw"],
                clips=given["clips"],
                mean=tuple(given["mean"]),
                std=tuple(given["std"]),
                clients=given["clients"],
                classes=given["classes"],
                transport=given["transport"],
                seeded=given["seeded"],
                wire=tuple(map(tuple, given["wire"])),
            )
        except (KeyError, TypeError, AttributeError):
            raise SelfsameError("agreement: a part is missing or of another type") from None
        found._check()
        if found.to_json() != given:
            raise SelfsameError("agreement: not written as this version writes it")
        return found

    def _check(self) -> None:
        sizes = all(type(size) is int and 0 < size <= _MOST for size in (*self.shape, self.clients, self.classes))
        numbers = all(type(value) is float for value in (*self.mean, *self.std)) and all(self.std)
        truths = type(self.clips) is bool and type(self.seeded) is bool
        words = self.precision in DTYPE and self.raw in RAW and self.transport in TRANSPORTS
        channels = len(self.mean) == len(self.std) > 0 and len(self.mean) in (1, *self.shape[:1])
        if not (0 < len(self.run) <= 64 and self.shape and sizes and numbers and truths and words and channels):
            raise SelfsameError("agreement: a value is out of range")
        if self.wire != _wire(self.method):
            raise SelfsameError(f"agreement: {self.recipe.method.name} sends other fields in this version")

    @cached_property
    def digest(self) -> str:
        """What both sides call these terms by."""
        return digest_of(self.to_json())

    @property
    def method(self) -> LocalLoss:
        method = methods.make(self.recipe.method.name, self.recipe.method.options, loaded=True)
        check_method(method)
        return method

    @property
    def dtype(self) -> torch.dtype:
        return DTYPE[self.precision]

    @property
    def rate(self) -> int:
        """Samples a second of a recording; 0: whatever it is."""
        data = self.recipe.data
        known = DATASETS[data.name].options.get("rate", 0) if data.name in DATASETS else 0
        return int(data.options.get("rate", known))

    def model(self) -> Model:
        """The network, whose numbers come with every request."""
        method, net = self.method, self.recipe.net
        width = method.width(net.width)
        world = World(self.clients, self.classes, width, torch.zeros(1, dtype=torch.int64))
        head = method.begin_head(world, Stream.named(0, "head", torch.zeros(1, dtype=torch.int64)))
        return Model(nets.build(net.name, self.shape, width, seed=0, **net.options), head, Machine(dtype=self.dtype))


def check_method(method: LocalLoss) -> None:
    """Refuse a method whose devices do something else than train and report."""
    if isinstance(method, SplitLoss):
        raise SelfsameError(f"{method.name}: its rounds are split with an enclave; devices run it another way")
    if not method.federated:
        raise SelfsameError(f"{method.name}: every device trains for itself, there is nothing to deploy")


def _wire(method: LocalLoss) -> tuple[tuple[str, str, int, str], ...]:
    return tuple((name, way, int(sight), what) for name, way, sight, what in method.wire.rows())


def _as_agreed(recipe: Recipe, seeded: bool) -> Recipe:
    """What of the recipe concerns a device; the rest is the server's business."""
    run = RunPart(rounds=recipe.run.rounds, seed=recipe.run.seed if seeded else 0, device="cpu")
    data = replace(recipe.data, path="")
    return Recipe(recipe.method, data, recipe.net, run, local=recipe.local, augment=recipe.augment)


def digest_of(terms: Any) -> str:
    """A hash by which both sides call what can be written as JSON."""
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_samples(folder: Path, federation: Federation, raw: str) -> None:
    """What samples look like, beside the recipe: enough to read the run's network again where there are none."""
    write(folder / SAMPLES, json.dumps(written_samples(federation, raw)).encode())
