"""A device of split rounds (FDML): bytes in, bytes out. It attests the enclave before anything of its samples leaves.

Each message may find another process. So the session with the enclave (its secret and its sequence numbers), the
round's network, the seed of the batches and the privacy that was spent lie on the device's disk before a reply is
returned. The pass of the second phase repeats that of the first: the same samples, drawn from the same seed, and the
same network.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.deploy.codec import Json, decode, encode, glance
from selfsame.deploy.codec import Refused as Untaken
from selfsame.deploy.device import open_samples, place_of
from selfsame.deploy.memory import Keep, Kept
from selfsame.deploy.schedule import Conditions
from selfsame.deploy.split.agreement import (
    TO_REGISTER,
    Refused,
    SplitAgreement,
    boxed,
    from_hex,
    to_derive,
    to_embed,
    unboxed,
)
from selfsame.deploy.split.attest import Attested, Policy
from selfsame.deploy.split.participant import Participant
from selfsame.enclave.mandate import Plan
from selfsame.engine.batches import Batch
from selfsame.engine.problem import Problem
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields

_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, ArithmeticError, SelfsameError)
_NETWORK, _TEMPLATE = "round.network", "round.template"  # what is kept between the two phases of a round


class SplitDevice:
    """A node's part in one run of split rounds.

    `samples` and `conditions` as for `selfsame.deploy.device.Device`. `policy` and `collateral` say which enclave the
    device trusts; by default none. `simulate`: agree to batches that the server can draw too. `agreed`: the digest of
    the only terms to agree to; without it the first server's terms are taken, and no others after them.
    """

    def __init__(
        self,
        folder: Path,
        samples: str | Path | Tensor,
        *,
        policy: Policy | None = None,
        collateral: str | None = None,
        conditions: Path | None = None,
        simulate: bool = False,
        agreed: str | None = None,
    ) -> None:
        self.keep = Keep(folder)
        self._samples, self._conditions = samples, conditions
        self._policy, self._collateral = policy or Policy(), collateral
        self._simulate, self._agreed = simulate, agreed
        self._built: tuple[str, int, Problem, Plan] | None = None

    @property
    def attested(self) -> Attested | None:
        """What the enclave of the present session proved, for reports."""
        kept = self.keep.read()
        if not kept.notes.get("session"):
            return None
        return self._session(SplitAgreement.from_json(kept.notes["agreement"]), kept, "session").attested

    @property
    def taken(self) -> int:
        """Rounds in which this device's embeddings have left it: what its privacy costs."""
        return int(self.keep.read().notes.get("taken", 0))

    def reply(self, payload: bytes) -> bytes:
        """The answer to a message; a message that is not taken is answered with the reason, and changes nothing."""
        with self.keep.alone():
            kept = self.keep.read()
            try:
                return self._answer(kept, payload)
            except Untaken as refusal:
                run = kept.notes.get("agreement", {}).get("run", "")
                return encode("refused", max(kept.turn // 2, 0), {"run": run, "reason": refusal.reason}, {})

    def _answer(self, kept: Kept, payload: bytes) -> bytes:
        given = kept.notes.get("agreement")
        agreement = None if given is None else SplitAgreement.from_json(given)
        most = TO_REGISTER.most_bytes
        if agreement is not None:
            problem, plan = self._build(agreement, kept)
            most = max(most, to_embed(agreement, problem).most_bytes, to_derive(plan).most_bytes)
        kind, number, claimed = glance(payload, most)
        if kind == "register":
            return self._register(kept, agreement, payload)
        steps: dict[str, Callable[..., bytes]] = {"embed": self._embed, "derive": self._derive}
        if kind not in steps:
            raise Refused("kind")
        if agreement is None or claimed.get("plan") != agreement.digest:
            raise Refused("run" if agreement and claimed.get("run") != agreement.run else "plan")
        if not 0 <= number < agreement.recipe.run.rounds:
            raise Refused("round")
        turn = 2 * number + (kind == "derive")
        said = kept.answered(turn, payload)
        return said if said is not None else steps[kind](kept, agreement, payload, number, claimed)

    # Registration: the terms, then the enclave's quote

    def _register(self, kept: Kept, agreement: SplitAgreement | None, payload: bytes) -> bytes:
        message = decode(payload, expected=TO_REGISTER)
        try:
            offered = SplitAgreement.from_json(message.meta["agreement"])
        except SelfsameError:
            raise Refused("plan") from None
        if message.run != offered.run:
            raise Refused("run")
        if agreement is None:
            kept = self._consent(offered, kept)
        elif offered.digest != agreement.digest:
            raise Refused("plan" if offered.run == agreement.run else "run")
        _, count = self._source(offered)
        hello, attested = b"", from_hex(message.meta["attested"])
        if not attested:
            pending = Participant(self._build(offered, kept)[1], self._policy, self._collateral)
        else:
            pending = self._session(offered, kept, "pending")
            if pending.memory()["said"]:
                raise Refused("quote")  # its nonce has been used
            try:
                hello = pending.hello(attested)
            except SelfsameError:
                raise Refused("quote") from None
        self.keep.write(replace(kept, notes={**kept.notes, "pending": pending.memory()}))
        meta = {
            "run": offered.run,
            "samples": count,
            "conditions": vars(Conditions.now(self._conditions)),
            "place": place_of(self._samples),
            "nonce": "" if attested else pending.nonce.hex(),
            "hello": hello.hex(),
        }
        return encode("registered", message.round, meta, {})

    def _consent(self, offered: SplitAgreement, kept: Kept) -> Kept:
        """Whether this device agrees to the terms at all; what it keeps of them."""
        if (self._agreed is not None and offered.digest != self._agreed) or (offered.seeded and not self._simulate):
            raise Refused("plan")
        seed = offered.recipe.run.seed if offered.seeded else secrets.randbits(62)
        kept = replace(kept, notes={"agreement": offered.to_json(), "seed": seed, "taken": 0})
        try:
            self._build(offered, kept)
        except Untaken:
            raise
        except _FAILURES:
            raise Refused("plan") from None
        return kept

    # A round

    def _embed(
        self, kept: Kept, agreement: SplitAgreement, payload: bytes, number: int, claimed: dict[str, Json]
    ) -> bytes:
        """Steps 3 and 4."""
        client = claimed.get("client")
        if type(client) is not int or not 0 <= client < agreement.clients:
            raise Refused("meta")
        if kept.notes.get("assigned", client) != client:
            raise Refused("plan")
        if not Conditions.now(self._conditions).ready:
            raise Refused("not ready")
        problem, _ = self._build(agreement, kept, client)
        taken, most = kept.notes["taken"], problem.recipe.split.most
        if most and taken >= most:
            raise Refused("spent")
        message = decode(payload, expected=to_embed(agreement, problem))
        notes, session = self._present(kept, agreement, message.meta)
        theta_P = message.fields["network"]
        who, batch = self._batch(problem, client, number)
        with torch.no_grad():
            emb_1BD = problem.model.embed_eager(theta_P, batch.x_MB[0])[None]
        stays, leaves = problem.method.report(
            {}, {}, who, emb_1BD, batch.mask_MB, problem.stream("report", who.client_M, number)
        )
        problem.method.wire.check_up(leaves, kept.fields, stays)
        if not bool(torch.isfinite(leaves["embedding"]).all()):
            raise Refused("finite")
        meta, fields = boxed(session.embeddings(number + 1, leaves["embedding"][0].numpy()))
        reply = encode("embed", number, {"run": agreement.run} | meta, fields)
        own: Fields = {name: value for name, value in kept.fields.items() if name in problem.method.wire.own}
        own |= {_NETWORK: theta_P, _TEMPLATE: stays["template"]}
        notes |= {"session": session.memory(), "assigned": client, "taken": taken + 1}
        self.keep.write(kept.after(2 * number, payload, reply, own, notes))
        return reply

    def _derive(
        self, kept: Kept, agreement: SplitAgreement, payload: bytes, number: int, claimed: dict[str, Json]
    ) -> bytes:
        """Steps 6 to 8, once for the embeddings that were sent."""
        if kept.turn != 2 * number:
            raise Refused("round")
        client = kept.notes["assigned"]
        problem, plan = self._build(agreement, kept, client)
        message = decode(payload, expected=to_derive(plan))
        session = self._session(agreement, kept, "session")
        _, batch = self._batch(problem, client, number)
        try:
            derivative_BD = session.derivatives(number + 1, unboxed(message))
        except SelfsameError:
            raise Refused("seal") from None
        theta = kept.fields[_NETWORK].requires_grad_()
        emb_BD = problem.model.embed_eager(theta, batch.x_MB[0])
        if derivative_BD.shape != tuple(emb_BD.shape):
            raise Refused("shape")
        # As the derivative of a product: handed the derivatives, autograd would import a library of symbolic algebra.
        value = torch.dot(emb_BD.flatten(), torch.from_numpy(derivative_BD).to(emb_BD.dtype).flatten())
        (gradient_P,) = torch.autograd.grad(value, theta)
        if not bool(torch.isfinite(gradient_P).all()):
            raise Refused("finite")
        meta, fields = boxed(session.gradient(number + 1, gradient_P.numpy().astype(np.float32)))
        reply = encode("derive", number, {"run": agreement.run} | meta, fields)
        own = {"template": kept.fields[_TEMPLATE]}
        self.keep.write(kept.after(2 * number + 1, payload, reply, own, {"session": session.memory()}))
        return reply

    def _present(
        self, kept: Kept, agreement: SplitAgreement, meta: dict[str, Json]
    ) -> tuple[dict[str, Any], Participant]:
        """(what changes in the notes, the session): the one that is open, or the one that this welcome opens."""
        welcome = from_hex(meta["welcome"])
        if kept.notes.get("session") and welcome.hex() in ("", kept.notes["session"]["welcome"]):
            session = self._session(agreement, kept, "session")
            if session.number != meta["session"]:
                raise Refused("session")
            return {}, session
        session = self._session(agreement, kept, "pending")
        try:
            session.welcome(welcome)
        except SelfsameError:
            raise Refused("session") from None
        return {"pending": {}}, session

    def _session(self, agreement: SplitAgreement, kept: Kept, which: str) -> Participant:
        memory = kept.notes.get(which)
        if not memory:
            raise Refused("session")
        plan = self._build(agreement, kept)[1]
        try:
            return Participant.remembered(plan, self._policy, memory, self._collateral)
        except SelfsameError:
            raise Refused("quote") from None

    def _source(self, agreement: SplitAgreement) -> Any:
        try:
            return open_samples(self._samples, agreement.samples)
        except (SelfsameError, OSError):
            raise Refused("samples") from None

    def _build(self, agreement: SplitAgreement, kept: Kept, client: int | None = None) -> tuple[Problem, Plan]:
        """Network, batches and the enclave's plan as they follow from the terms."""
        client = kept.notes.get("assigned", 0) if client is None else client
        if self._built is None or self._built[:2] != (agreement.digest, client):
            source, count = self._source(agreement)
            problem = agreement.problem(client, source, count, kept.notes["seed"])
            self._built = agreement.digest, client, problem, agreement.plan(problem)
        return self._built[2:]

    def _batch(self, problem: Problem, client: int, number: int) -> tuple[Cohort, Batch]:
        """The round's samples, the same whenever they are drawn."""
        who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
        (batch,) = problem.batches(who.client_M, number)
        if not bool(batch.sound_M):
            raise Refused("samples")
        return who, batch
