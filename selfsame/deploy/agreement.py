"""What a device agrees to when it registers: the method, the network and how they are trained, and what leaves it.

The server writes it once a run; the device hashes it and refuses every later message that is of another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from selfsame import methods, nets
from selfsame.config.recipe import Recipe, RunPart, from_mapping, to_mapping
from selfsame.data import DATASETS
from selfsame.data.clips import HeldClips, MappedClips
from selfsame.data.federation import RAW, Federation
from selfsame.deploy.aggregation.sum_terms import SumTerms
from selfsame.engine.enrolling import ENROLLED
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.problem import Problem
from selfsame.engine.setup import learned_of
from selfsame.engine.starting import load_kept, network_digest
from selfsame.errors import SelfsameError
from selfsame.fields import one_of, read_fields
from selfsame.methods import LocalLoss, SplitLoss, World
from selfsame.methods.poll import Poll
from selfsame.streams import Stream

TRANSPORTS = ("exact", "half")  # how the network travels; everything else travels as it is
DTYPE = {"float32": torch.float32, "float64": torch.float64}
_MOST = 2**24  # clients, classes, numbers along an axis: a device makes tables of such sizes
_PARTS = ("method", "data", "net", "run", "local", "augment")


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What the devices of every run agree to."""

    FORMAT: ClassVar[str]

    run: str  # the run's name: random, so that two runs of one recipe differ
    recipe: Recipe  # what of it concerns a device; of `seeded` runs with its seed, of others without
    shape: tuple[int, ...]  # of a sample
    raw: str  # its type
    clips: bool  # whether samples are cut from recordings
    mean: tuple[float, ...]
    std: tuple[float, ...]
    clients: int  # the most there can be
    transport: str = "exact"
    seeded: bool  # private draws come from the recipe's seed, which the server knows: for trying things out alone

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives the same terms back."""
        out = {part.name: getattr(self, part.name) for part in fields(self)} | {"recipe": self._tables()}
        return json.loads(json.dumps({"format": self.FORMAT, **out}, allow_nan=False, default=asdict))

    def _tables(self) -> dict[str, Any]:
        return to_mapping(self.recipe)

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """Terms that a server claims, each checked, or one clear line."""
        try:
            rest = {name: value for name, value in given.items() if name != "format"}
            found = read_fields("agreement", rest | {"recipe": from_mapping(given["recipe"])}, cls)
            same = digest_of(given) == found.digest
        except (KeyError, TypeError, AttributeError, ValueError):
            raise SelfsameError("agreement: a part is missing, of another type or not finite") from None
        if not same:
            raise SelfsameError("agreement: not written as this version writes it")
        found.check()
        return found

    def check(self) -> None:
        """Refuse what no device can work with."""
        one_of("transport", self.transport, TRANSPORTS)
        if self.recipe.net.start:
            raise SelfsameError("agreement: net.start: which files a device reads is its own business")
        if self.recipe.net.whitened:
            raise SelfsameError("agreement: net.whitened: a network is whitened when training has ended")
        sizes = all(0 < size <= _MOST for size in (*self.shape, self.recipe.net.width, self.clients))
        channels = len(self.mean) == len(self.std) > 0 and len(self.mean) in (1, *self.shape[:1])
        if not (0 < len(self.run) <= 64 and self.shape and sizes and all(self.std) and channels and self.raw in RAW):
            raise SelfsameError("agreement: a value is out of range")

    @cached_property
    def digest(self) -> str:
        """What both sides call these terms by."""
        return digest_of(self.to_json())

    @property
    def rate(self) -> int:
        """Samples a second of a recording; 0: whatever it is."""
        data = self.recipe.data
        known = DATASETS[data.name].options.get("rate", 0) if data.name in DATASETS else 0
        return int(data.options.get("rate", known))


@dataclass(frozen=True, kw_only=True)
class Agreement(Agreed):
    """The terms of a run whose devices train alone and report."""

    FORMAT = "selfsame-agreement-3"

    precision: str  # of the arithmetic, and of what travels exactly
    classes: int
    sums: SumTerms
    polls: tuple[SumTerms, ...]  # of what everybody adds now and then; none, where the method has no polls
    wire: tuple[tuple[str, str, int, str, str], ...]  # the method's table, with the bound of each field
    first: str = ""  # digest of the network that training begins with, where a device must have it; see net.train

    @staticmethod
    def of(problem: Problem, run: str, transport: str, seeded: bool, sums: SumTerms | None = None) -> Agreement:
        """The terms of a problem that the server has prepared; without `sums`, updates travel in the clear."""
        check_method(problem.method)
        _check_vectors(problem.recipe, problem.method)
        sums = sums or SumTerms.of(problem, 0)
        found = Agreement(
            run=run,
            recipe=_as_agreed(problem.recipe, seeded),
            transport=transport,
            seeded=seeded,
            precision=str(problem.model.dtype).removeprefix("torch."),
            classes=problem.federation.classes,
            sums=sums,
            polls=_polls(problem.method, problem.world.dim, sums),
            wire=_wire(problem.method, sums.summed),
            first=_first(problem),
            **sample_terms(problem.federation),
        )
        found.check()
        return found

    def _tables(self) -> dict[str, Any]:
        return {name: part for name, part in to_mapping(self.recipe).items() if name in _PARTS}

    def check(self) -> None:
        super().check()
        if bool(self.first) != self.recipe.net.anchored:
            raise SelfsameError("agreement: the first network is named where devices need it, and there alone")
        if self.precision not in DTYPE or not 0 < self.classes <= _MOST:
            raise SelfsameError("agreement: a value is out of range")
        self.sums.check()
        if self.polls != _polls(self.method, self.method.width(self.recipe.net.width), self.sums):
            raise SelfsameError(f"agreement: {self.recipe.method.name} is polled on other terms in this version")
        if self.wire != _wire(self.method, self.sums.summed):
            raise SelfsameError(f"agreement: {self.recipe.method.name} sends other fields in this version")

    @property
    def method(self) -> LocalLoss:
        method = methods.make(self.recipe.method.name, self.recipe.method.options, loaded=True)
        check_method(method)
        return method

    @property
    def poll(self) -> Poll | None:
        """When everybody is polled."""
        return self.method.poll(self.method.width(self.recipe.net.width))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPE[self.precision]

    def longest(self, way: str) -> dict[str, float]:
        """The most that a row of each field may measure, by the method's own declaration."""
        method = self.method
        return method.longest(way, method.width(self.recipe.net.width), self.classes, self.clients)

    def model(self, start: Path | None = None) -> Model:
        """The network; the numbers of what learns come with every request, the others from the device's own file."""
        method, net = self.method, self.recipe.net
        width = method.width(net.width)
        world = World(self.clients, self.classes, width, torch.zeros(1, dtype=torch.int64))
        head = method.begin_head(world, Stream.named(0, "head", torch.zeros(1, dtype=torch.int64)))
        made = nets.build(net.name, self.shape, width, seed=0, started=net.started, **net.options)
        if self.first:
            if start is None:
                raise SelfsameError("agreement: a part of the network does not learn; name the file that holds it")
            load_kept(made, start)
            if network_digest(dict(made.named_parameters())) != self.first:
                raise SelfsameError(f"{start}: not the network that this run begins with")
        return Model(made, head, Machine(dtype=self.dtype), learned_of(net, made, self.shape, 0))


def _first(problem: Problem) -> str:
    model = problem.model
    return network_digest(model.net_views(model.first_theta)) if problem.recipe.net.anchored else ""


def check_method(method: LocalLoss) -> None:
    """Refuse a method whose devices do something else than train and report."""
    if isinstance(method, SplitLoss):
        raise SelfsameError(f"{method.name}: its rounds are split with an enclave; devices run it another way")
    if not method.federated:
        raise SelfsameError(f"{method.name}: every device trains for itself, there is nothing to deploy")


def _check_vectors(recipe: Recipe, method: LocalLoss) -> None:
    """A device enrols what it keeps. What the server or everybody holds begins before devices are heard."""
    if recipe.net.vectors == ENROLLED and method.enrols not in method.wire.own:
        raise SelfsameError(
            f"net.vectors: the vectors of {method.name} are not kept by devices, and begin as drawn: "
            'set net.vectors="drawn"'
        )


def _polls(method: LocalLoss, dim: int, sums: SumTerms) -> tuple[SumTerms, ...]:
    poll = method.poll(dim)
    if poll is None:
        return ()
    if not sums.summed:
        raise SelfsameError(
            f"{method.name}: its polls hold the vectors that stand for owners, and a server may see sums alone; set "
            "sums.aggregation to masked or enclave"
        )
    return (sums.of_polls(poll),)


def _wire(method: LocalLoss, summed: bool) -> tuple[tuple[str, str, int, str, str], ...]:
    rows, bound = method.wire.rows(summed), method.wire.bound_words
    return tuple((name, way, int(sight), what, bound(name, way)) for name, way, sight, what in rows)


def _as_agreed(recipe: Recipe, seeded: bool) -> Recipe:
    """What of the recipe concerns a device; the rest is the server's business."""
    run = RunPart(rounds=recipe.run.rounds, seed=recipe.run.seed if seeded else 0, device="cpu")
    data, net = replace(recipe.data, path=""), replace(recipe.net, start="")
    return Recipe(recipe.method, data, net, run, local=recipe.local, augment=recipe.augment)


def sample_terms(federation: Federation) -> dict[str, Any]:
    """Of the samples only how many clients have some, and their type, shape and scale."""
    source, none = federation.source, torch.zeros(1, 0, dtype=torch.int64)
    raw = source.rows(none.new_zeros(1), none).dtype
    name = next((name for name, dtype in RAW.items() if dtype == raw), None)
    if name is None:
        raise SelfsameError(f"data: devices read samples of {', '.join(RAW)}, this data set holds {raw}")
    return {
        "shape": federation.shape,
        "raw": name,
        "clips": isinstance(source, HeldClips | MappedClips),
        "mean": federation.mean,
        "std": federation.std,
        "clients": federation.clients,
    }


def digest_of(terms: Any) -> str:
    """A hash by which both sides call what can be written as JSON."""
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
