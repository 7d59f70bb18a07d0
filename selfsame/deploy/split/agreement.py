"""What the server and the devices of split rounds (FDML) agree on, and the messages that pass between them.

From the agreement both ends build the same network, the same batches and the enclave's training plan, whose hash stands
in the quote. A device pins the first agreement that it accepts.

    register    down: the agreement; later the enclave's key and quote.   up: conditions and a nonce; later the hello
    embed       down: the network (and the enclave's welcome).            up: embeddings, sealed to the enclave
    derive      down: derivatives, sealed to the device.                  up: its gradient, sealed to the enclave
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe, RunPart, ServerPart, from_mapping, to_mapping
from selfsame.data import Federation, Samples, Source
from selfsame.data.clips import HeldClips, MappedClips
from selfsame.data.federation import RAW
from selfsame.deploy import codec
from selfsame.deploy.agreement import TRANSPORTS, Agreement, digest_of
from selfsame.deploy.codec import Field, Message, Spec
from selfsame.deploy.schedule import Terms
from selfsame.enclave.mandate import Plan
from selfsame.enclave.message import packed_size
from selfsame.engine.problem import Problem
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss, method_class

REASONS = (
    *codec.REASONS,
    "quote",  # the enclave is not proved to be what the device's policy asks for
    "session",  # no such session with the enclave
    "spent",  # the device's privacy budget
    "seal",  # what is sealed in the message does not open, or is not what it should be
)
OVERHEAD = 64  # bytes that a seal adds, at most
_FORMAT = "selfsame-split-agreement-1"
_LARGEST = 1 << 24  # number of clients, or size of anything
_WORD = 8


class Refused(codec.Refused):
    """As `codec.Refused`, with the reasons of split rounds."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS, reason
        Exception.__init__(self, reason)
        self.reason = reason


@dataclass(frozen=True)
class SplitAgreement:
    """Everything that a device agrees to: recipe, what a sample is, and Algorithm 3's least numbers."""

    run: str  # the run's name: random, so that two runs of one recipe differ
    recipe: Recipe  # what of it concerns a device
    shape: tuple[int, ...]  # of a sample
    raw: str  # its type
    clips: bool  # whether samples are cut from recordings
    mean: tuple[float, ...]
    std: tuple[float, ...]
    clients: int  # the most there can be
    seeded: bool  # batches are drawn from the recipe's seed, which the server knows: for trying things out alone
    required: int  # embeddings before derivatives are computed
    gradients: int  # gradients before a sum leaves the enclave
    transport: str = "exact"  # how the network travels down: as it is, or in half precision
    embedding_norm: float = 1e4
    gradient_norm: float = 1e6

    @staticmethod
    def of(problem: Problem, terms: Terms, run: str, seeded: bool, transport: str = "exact") -> SplitAgreement:
        """The terms of a problem that the server has prepared; of its samples only type, shape and scale are used."""
        federation, source, recipe = problem.federation, problem.federation.source, problem.recipe
        if federation.classes != federation.clients:
            raise SelfsameError(f"{federation.name}: on real devices every client is a person of its own; one a class")
        none = torch.zeros(1, 0, dtype=torch.int64)
        raw = str(source.rows(none.new_zeros(1), none).dtype).removeprefix("torch.")
        precision = str(problem.model.dtype).removeprefix("torch.")
        part = RunPart(
            rounds=recipe.run.rounds, seed=recipe.run.seed if seeded else 0, device="cpu", precision=precision
        )
        data = replace(recipe.data, path="")
        agreed = replace(recipe, title="", data=data, run=part, server=ServerPart())
        found = SplitAgreement(
            run,
            agreed,
            federation.shape,
            raw,
            isinstance(source, HeldClips | MappedClips),
            federation.mean,
            federation.std,
            federation.clients,
            seeded,
            terms.required,
            terms.needed if terms.strategy == "as" else min(terms.needed, terms.fewest + 1),
            transport,
        )
        found._check()
        return found

    def _check(self) -> None:
        recipe = self.recipe
        if recipe.cohort.weights != "samples":
            raise SelfsameError("cohort.weights: the enclave weighs gradients by samples, (2); set it to samples")
        if recipe.cohort.dropout or recipe.cohort.late or recipe.split.lost or recipe.split.ready < 1:
            raise SelfsameError(
                "cohort.dropout, cohort.late, split.lost, split.ready: real devices need no such chance"
            )
        if ":" in recipe.net.name:
            raise SelfsameError(f"net.name: {recipe.net.name!r} would run code by its name; name a registered network")
        method_class(recipe.method.name, loaded=True)
        sizes = all(type(size) is int and 0 < size < _LARGEST for size in (*self.shape, recipe.net.width, self.clients))
        numbers = all(type(value) is float for value in (*self.mean, *self.std)) and all(self.std)
        channels = len(self.mean) == len(self.std) > 0 and len(self.mean) in (1, *self.shape[:1])
        truths = type(self.clips) is bool and type(self.seeded) is bool
        if not (
            0 < len(self.run) <= 64 and self.shape and sizes and numbers and channels and truths and self.raw in RAW
        ):
            raise SelfsameError("agreement: a value is out of range")
        if self.transport not in TRANSPORTS:
            raise SelfsameError(f"transport: {self.transport!r} is not one of {', '.join(TRANSPORTS)}")
        if recipe.data.path or recipe.run.device != "cpu" or recipe.run.precision not in ("float32", "float64"):
            raise SelfsameError("agreement: data.path, run.device and run.precision are the device's own business")

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives the same terms back."""
        out = {part.name: getattr(self, part.name) for part in fields(self)} | {"recipe": to_mapping(self.recipe)}
        return json.loads(json.dumps({"format": _FORMAT, **out}, allow_nan=False))

    @staticmethod
    def from_json(given: dict[str, Any]) -> SplitAgreement:
        """Terms that a server claims, each checked, or one clear line."""
        try:
            whole = {part.name: given[part.name] for part in fields(SplitAgreement)}
            whole |= {name: tuple(given[name]) for name in ("shape", "mean", "std")}
            found = SplitAgreement(**(whole | {"recipe": from_mapping(given["recipe"])}))
            found._check()
        except (KeyError, TypeError, AttributeError):
            raise SelfsameError("agreement: a part is missing or of another type") from None
        if found.to_json() != given:
            raise SelfsameError("agreement: not written as this version writes it")
        return found

    @cached_property
    def digest(self) -> str:
        """What both sides call these terms by."""
        return digest_of(self.to_json())

    @property
    def samples(self) -> Agreement:
        """As much of it as opening the device's samples takes."""
        precision = self.recipe.run.precision
        what = (self.run, self.recipe, precision, self.shape, self.raw, self.clips, self.mean, self.std)
        return Agreement(*what, self.clients, self.clients, "exact", self.seeded, ())

    def problem(self, client: int, source: Source, count: int, seed: int) -> Problem:
        """Network, method and batches for the device of one client, which has `count` samples."""
        count_N = torch.zeros(self.clients, dtype=torch.int64)
        count_N[client] = count
        none, everybody = Samples.none(self.shape), torch.arange(self.clients)
        name, recipe = self.recipe.data.name, self.recipe
        shell = Federation(name, self.shape, everybody, count_N, source, none, none, self.mean, self.std)
        return prepare(replace(recipe, run=replace(recipe.run, compile="off", seed=seed)), shell)

    def plan(self, problem: Problem) -> Plan:
        """The enclave's training plan."""
        method, recipe = problem.method, problem.recipe
        told = method.enclave_terms() if isinstance(method, SplitLoss) else None
        if told is None:
            raise SelfsameError(f"{recipe.method.name}: the enclave does not know its loss")
        loss, privacy = told
        try:
            return Plan(
                network=f"{recipe.net.name} {self.digest}",
                dim=problem.world.dim,
                parameters=problem.model.parameters,
                loss=loss,
                privacy=privacy,
                participants=self.required,
                gradients=self.gradients,
                samples=recipe.local.batch,
                embedding_norm=self.embedding_norm,
                gradient_norm=self.gradient_norm,
                rounds=recipe.run.rounds,
            )
        except ValueError as error:
            raise SelfsameError(f"{error}; cohort.size is at least 2, and so is cohort.size x split.response") from None


# Messages

_BOX = {"length": int}
TO_REGISTER = Spec("register", meta={"agreement": dict, "attested": str})
REGISTERED = {"samples": int, "conditions": dict, "place": int, "nonce": str, "hello": str}
REFUSED = Spec("refused", meta={"reason": str})


def to_embed(agreement: SplitAgreement, problem: Problem) -> Spec:
    """The network, which session it is for, and the welcome where the session is new."""
    meta = {"plan": str, "client": int, "session": int, "welcome": str}
    network = Field((problem.model.parameters,), problem.model.dtype, half=agreement.transport == "half")
    return Spec("embed", meta=meta, fields={"network": network})


def to_derive(plan: Plan) -> Spec:
    return _boxes("derive", {"plan": str}, packed_size(plan.samples, plan.dim))


def embedded(plan: Plan) -> Spec:
    return _boxes("embed", {}, packed_size(plan.samples, plan.dim))


def derived(plan: Plan) -> Spec:
    return _boxes("derive", {}, packed_size(1, plan.parameters))


def _boxes(kind: str, meta: dict[str, type], size: int) -> Spec:
    most = -(-(size + OVERHEAD) // _WORD)
    return Spec(kind, meta=meta | _BOX, fields={"sealed": Field((-1,), torch.int64, most=most)})


def boxed(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Sealed bytes as (meta, fields) of a message: eight to a number, for a message carries numbers."""
    whole = bytearray(data + bytes(-len(data) % _WORD))
    return {"length": len(data)}, {"sealed": torch.frombuffer(whole, dtype=torch.int64)}


def unboxed(message: Message) -> bytes:
    """The sealed bytes of a message."""
    data, length = message.fields["sealed"].numpy().tobytes(), message.meta["length"]
    if not 0 < length <= len(data) < length + _WORD:
        raise Refused("shape")
    return data[:length]


def from_hex(text: str) -> bytes:
    """Bytes that stand in a message as hexadecimal digits."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused("meta") from None
