"""A device of split rounds (FDML): bytes in, bytes out. It attests the enclave before anything of its samples leaves.

Each message may find another process. So the session with the enclave (its secret and its sequence numbers), the
round's network, the seed of the batches and the privacy that was spent lie on the device's disk before a reply is
returned. The pass of the second phase repeats that of the first: the same samples, drawn from the same seed, and the
same network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.deploy.codec import Json, Message, Refused, as_tensor, decode, encode
from selfsame.deploy.guest import Guest
from selfsame.deploy.memory import Memory
from selfsame.deploy.received import theta_digest
from selfsame.deploy.schedule import Conditions
from selfsame.deploy.split.agreement import TO_REGISTER, SplitAgreement, from_hex, to_derive, to_embed
from selfsame.deploy.split.attest import Attested, Policy
from selfsame.deploy.split.participant import Participant
from selfsame.enclave.mandate import Mandate
from selfsame.engine.batches import Batch
from selfsame.engine.problem import Problem
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields

_NETWORK, _TEMPLATE = "round.network", "round.template"  # what is kept between the two phases of a round


class SplitDevice(Guest[SplitAgreement]):
    """A node's part in one run of split rounds.

    `policy` and `collateral` say which enclave the device trusts; by default none. The rest: `Guest`.
    """

    TERMS = SplitAgreement
    INVITATION = TO_REGISTER

    def __init__(
        self,
        folder: Path,
        samples: str | Path | Tensor,
        *,
        policy: Policy | None = None,
        collateral: str | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(folder, samples, **rest)
        self._policy, self._collateral = policy or Policy(), collateral
        self._steps = {"embed": self._embed, "derive": self._derive}
        self._built: tuple[str, int, Problem, Mandate] | None = None

    @property
    def attested(self) -> Attested | None:
        """What the enclave of the present session proved, for reports."""
        kept = self.keep.read()
        agreement = self._agreed_to(kept)
        if agreement is None or not kept.notes.get("session"):
            return None
        return self._session(agreement, kept, "session").attested

    @property
    def taken(self) -> int:
        """Rounds in which this device's embeddings have left it, as it or the enclave counts: its privacy's cost."""
        return _taken(self.keep.read())

    def _longest(self, kept: Memory, agreement: SplitAgreement) -> int:
        problem, mandate = self._build(agreement, kept)
        return max(to_embed(agreement, problem).most_bytes, to_derive(mandate).most_bytes)

    # Registration: the terms, then the enclave's quote

    def _consent(self, kept: Memory, offered: SplitAgreement) -> None:
        self._build(offered, kept)

    def _introduce(
        self, kept: Memory, agreement: SplitAgreement, message: Message
    ) -> tuple[dict[str, Json], dict[str, Json]]:
        """Whoever registers attests anew: the session before ends with the nonce for the next."""
        attested, hello = from_hex(message.meta["attested"]), b""
        name = kept.notes.get("name") or os.urandom(32).hex()
        notes: dict[str, Json] = {"name": name}
        if not attested:
            mandate = self._build(agreement, kept)[1]
            pending = Participant(mandate, self._policy, self._collateral, bytes.fromhex(name))
            notes["session"] = {}
        else:
            pending = self._session(agreement, kept, "pending")
            if pending.memory()["said"]:
                raise Refused("quote")  # its nonce has been used
            try:
                hello = pending.hello(attested)
            except SelfsameError:
                raise Refused("quote") from None
        nonce = "" if attested else pending.nonce.hex()
        return notes | {"pending": pending.memory()}, {"nonce": nonce, "hello": hello.hex()}

    # A round

    def _embed(
        self, kept: Memory, agreement: SplitAgreement, payload: bytes, number: int, claimed: dict[str, Json]
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
        message = decode(payload, expected=to_embed(agreement, problem))
        notes, session = self._present(kept, agreement, message.meta)
        taken, most = max(_taken(kept), session.used), problem.recipe.split.most
        if most and taken >= most:
            raise Refused("spent")
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
        sealed = as_tensor(session.embeddings(number + 1, leaves["embedding"][0].numpy(), theta_digest(theta_P)))
        reply = encode("embed", number, {"run": agreement.run}, {"sealed": sealed})
        own: Fields = {name: value for name, value in kept.fields.items() if name in problem.method.wire.own}
        own |= {_NETWORK: theta_P, _TEMPLATE: stays["template"]}
        notes |= {"session": session.memory(), "assigned": client, "taken": taken + 1}
        self.keep.write(kept.after(self._turn("embed", number), payload, reply, own, notes))
        return reply

    def _derive(
        self, kept: Memory, agreement: SplitAgreement, payload: bytes, number: int, claimed: dict[str, Json]
    ) -> bytes:
        """Steps 6 to 8, once for the embeddings that were sent."""
        if kept.turn != self._turn("embed", number):
            raise Refused("round")
        client = kept.notes["assigned"]
        problem, mandate = self._build(agreement, kept, client)
        message = decode(payload, expected=to_derive(mandate))
        session = self._session(agreement, kept, "session")
        _, batch = self._batch(problem, client, number)
        try:
            derivative_BD = session.derivatives(number + 1, bytes(message.fields["sealed"].numpy()))
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
        sealed = as_tensor(session.gradient(number + 1, gradient_P.numpy().astype(np.float32)))
        reply = encode("derive", number, {"run": agreement.run}, {"sealed": sealed})
        own = {"template": kept.fields[_TEMPLATE]}
        self.keep.write(kept.after(self._turn("derive", number), payload, reply, own, {"session": session.memory()}))
        return reply

    def _present(
        self, kept: Memory, agreement: SplitAgreement, meta: dict[str, Json]
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

    def _session(self, agreement: SplitAgreement, kept: Memory, which: str) -> Participant:
        memory = kept.notes.get(which)
        if not memory:
            raise Refused("session")
        mandate = self._build(agreement, kept)[1]
        try:
            return Participant.remembered(mandate, self._policy, memory, self._collateral)
        except SelfsameError:
            raise Refused("quote") from None

    def _build(self, agreement: SplitAgreement, kept: Memory, client: int | None = None) -> tuple[Problem, Mandate]:
        """Network, batches and the enclave's mandate as they follow from the terms."""
        client = kept.notes.get("assigned", 0) if client is None else client
        if self._built is None or self._built[:2] != (agreement.digest, client):
            source, count = self._open(agreement)
            problem = agreement.problem(client, source, count, kept.notes["seed"])
            self._built = agreement.digest, client, problem, agreement.mandate(problem)
        return self._built[2:]

    def _batch(self, problem: Problem, client: int, number: int) -> tuple[Cohort, Batch]:
        """The round's samples, the same whenever they are drawn."""
        who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
        (batch,) = problem.batches(who.client_M, number)
        if not bool(batch.sound_M):
            raise Refused("samples")
        return who, batch


def _taken(kept: Memory) -> int:
    return int(kept.notes.get("taken", 0))
