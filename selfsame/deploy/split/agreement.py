"""What the server and the devices of split rounds (FDML) agree on, and the messages that pass between them.

From the agreement both ends build the same network, the same batches and the enclave's training plan, whose hash stands
in the quote. A device pins the first agreement that it accepts.

    register    down: the agreement; later the enclave's key and quote.   up: conditions and a nonce; later the hello
    embed       down: the network (and the enclave's welcome).            up: embeddings and its digest, sealed
    derive      down: derivatives, sealed to the device.                  up: its gradient, sealed to the enclave
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from selfsame.config.recipe import RunPart, ServerPart
from selfsame.data import Federation, Samples, Source
from selfsame.deploy.agreement import DTYPE, Agreed, sample_terms
from selfsame.deploy.codec import Field, Refused, Spec
from selfsame.deploy.schedule import Terms
from selfsame.enclave.mandate import Mandate
from selfsame.enclave.message import DIGEST, packed_size
from selfsame.engine.problem import Problem
from selfsame.engine.setup import prepare
from selfsame.engine.turnout import least_gradients
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss, method_class

_OVERHEAD = 128  # bytes that a seal adds, at most
_LONG = 16.0  # an embedding's numbers, root mean square: first networks have about 1, and trained ones up to 2
_STEEP = 10.0  # a gradient in lengths of the first network: honest ones have up to 4 (docs/design/enclave.md)


@dataclass(frozen=True, kw_only=True)
class SplitAgreement(Agreed):
    """The terms of split rounds: everything else that a device agrees to, and Algorithm 3's least numbers."""

    FORMAT = "selfsame-split-agreement-3"

    required: int  # embeddings before derivatives are computed
    gradients: int  # gradients before a sum leaves the enclave
    gradient_clip: float  # the longest gradient

    @staticmethod
    def of(problem: Problem, terms: Terms, run: str, seeded: bool, transport: str = "exact") -> SplitAgreement:
        """The terms of a problem that the server has prepared."""
        federation, recipe = problem.federation, problem.recipe
        if federation.classes != federation.clients:
            raise SelfsameError(f"{federation.name}: on devices every client is a person of its own; one per class")
        precision = str(problem.model.dtype).removeprefix("torch.")
        seed = recipe.run.seed if seeded else 0
        part = RunPart(rounds=recipe.run.rounds, seed=seed, device="cpu", precision=precision)
        found = SplitAgreement(
            run=run,
            recipe=replace(
                recipe,
                title="",
                data=replace(recipe.data, path=""),
                net=replace(recipe.net, start=""),
                run=part,
                server=ServerPart(),
            ),
            transport=transport,
            seeded=seeded,
            required=terms.required,
            gradients=least_gradients(terms.strategy, terms.needed, terms.fewest),
            gradient_clip=recipe.sums.clip or _about(_STEEP * float(problem.model.first_theta.double().norm())),
            **sample_terms(federation),
        )
        found.check()
        return found

    def check(self) -> None:
        super().check()
        recipe = self.recipe
        if recipe.cohort.weights != "samples":
            raise SelfsameError("cohort.weights: the enclave weighs gradients by samples, (2); set it to samples")
        if recipe.cohort.dropout or recipe.cohort.late or recipe.split.lost or recipe.split.ready < 1:
            raise SelfsameError(
                "cohort.dropout, cohort.late, split.lost, split.ready: real devices need no such chance"
            )
        if recipe.net.anchored:
            raise SelfsameError("net.train, net.adapters: not on devices in split rounds; let the whole network learn")
        if ":" in recipe.net.name:
            raise SelfsameError(f"net.name: {recipe.net.name!r} would run code by its name; name a registered network")
        method_class(recipe.method.name, loaded=True)
        if recipe.data.path or recipe.run.device != "cpu" or recipe.run.precision not in DTYPE:
            raise SelfsameError("agreement: data.path, run.device and run.precision are the device's own business")

    def problem(self, client: int, source: Source, count: int, seed: int) -> Problem:
        """Network, method and batches for the device of one client, which has `count` samples."""
        count_N = torch.zeros(self.clients, dtype=torch.int64)
        count_N[client] = count
        none, everybody = Samples.none(self.shape), torch.arange(self.clients)
        name, recipe = self.recipe.data.name, self.recipe
        shell = Federation(name, self.shape, everybody, count_N, source, none, none, self.mean, self.std)
        return prepare(replace(recipe, run=replace(recipe.run, compile="off", seed=seed)), shell)

    def mandate(self, problem: Problem) -> Mandate:
        """The enclave's training plan."""
        method, recipe = problem.method, problem.recipe
        told = method.enclave_terms() if isinstance(method, SplitLoss) else None
        if told is None:
            raise SelfsameError(f"{recipe.method.name}: the enclave does not know its loss")
        loss, privacy = told
        try:
            return Mandate(
                network=f"{recipe.net.name} {self.digest}",
                dim=problem.world.dim,
                parameters=problem.model.parameters,
                loss=loss,
                privacy=privacy,
                participants=self.required,
                gradients=self.gradients,
                samples=recipe.local.batch,
                embedding_clip=_LONG * math.sqrt(problem.world.dim),
                gradient_clip=self.gradient_clip,
                rounds=recipe.run.rounds,
                most=recipe.split.most,
            )
        except ValueError as error:
            raise SelfsameError(f"{error}; cohort.size is at least 2, and so is cohort.size x split.response") from None


def _about(number: float) -> float:
    """To three digits: the terms of a run are the same on processors that round differently."""
    return float(f"{number:.3g}")


# Messages

TO_REGISTER = Spec("register", meta={"agreement": dict, "attested": str})
REGISTERED = {"samples": int, "conditions": dict, "place": int, "nonce": str, "hello": str}


def to_embed(agreement: SplitAgreement, problem: Problem) -> Spec:
    """The network, which session it is for, and the welcome where the session is new."""
    meta = {"plan": str, "client": int, "session": int, "welcome": str}
    network = Field((problem.model.parameters,), problem.model.dtype, half=agreement.transport == "half")
    return Spec("embed", meta=meta, fields={"network": network})


def to_derive(mandate: Mandate) -> Spec:
    return _sealed("derive", {"plan": str}, packed_size(mandate.samples, mandate.dim))


def embedded(mandate: Mandate) -> Spec:
    return _sealed("embed", {}, DIGEST + packed_size(mandate.samples, mandate.dim))


def derived(mandate: Mandate) -> Spec:
    return _sealed("derive", {}, packed_size(1, mandate.parameters))


def _sealed(kind: str, meta: dict[str, type], size: int) -> Spec:
    return Spec(kind, meta=meta, fields={"sealed": Field((-1,), torch.uint8, most=size + _OVERHEAD)})


def from_hex(text: str) -> bytes:
    """Bytes that stand in a message as hexadecimal digits."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused("meta") from None
