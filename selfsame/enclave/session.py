"""The enclave: rounds of the split protocol (Fig. 2, steps 4 to 9), and nothing of them that leaves unsealed.

Two things come out of a round: to each participant its own noised derivatives, sealed to it; and, once the plan's
number of gradients is in, their weighted mean. Each comes out once: two means over different participants would
differ by somebody's gradient. Embeddings are sealed with the digest of the network that they were made with, and a
round has one network: where others were sent one without features, the mean would be a single device's gradient.

Where the loss compares samples with class vectors, a device is a class. Its vector begins with its first round, learns
in every round that ends with a mean, and never comes out.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.enclave import losses, quote, seal
from selfsame.enclave.door import Attest, Door
from selfsame.enclave.mandate import Mandate
from selfsame.enclave.message import DIGEST, Content, Denied, Order, clipped, pack, packed_size, unpack
from selfsame.enclave.noise import Draw, Mechanism, kept, noised

_NUMBER = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_MOST_NONCES = 1 << 16  # that are remembered, used or not; the oldest is forgotten first


@dataclass
class Sitting:
    """What the enclave holds between the first embedding and the aggregate."""

    number: int
    network: bytes  # its digest
    emb: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by session, until derivatives are out
    devices: set[bytes] = field(default_factory=set)  # whose embeddings are in
    sizes: dict[int, int] = field(default_factory=dict)  # |d_i|, of those who were sent derivatives
    given: set[int] = field(default_factory=set)  # those whose gradient is in
    sum_P: NDArray[np.float64] | None = None
    vectors: dict[bytes, NDArray[np.float64]] = field(default_factory=dict)  # by device, once the round has ended well
    closed: bool = False


class Enclave(Door):
    """The enclave of split rounds; it alone holds the sessions' keys."""

    def __init__(self, plan: Mandate, draw: Draw = os.urandom, attest: Attest = quote.take) -> None:
        super().__init__(plan.digest(), attest)
        self._plan, self._draw = plan, draw
        self._loss, self._mechanism = losses.Loss(**plan.loss), Mechanism(**plan.privacy)
        if self._loss.keeps and self._mechanism.kind != "none":
            raise ValueError("plan: class vectors carry embeddings into rounds that no privacy budget counts")
        self._vectors: dict[bytes, NDArray[np.float64]] = {}  # by device: a class each
        self._nonces: dict[bytes, bool] = {}  # and whether a session may still be opened with it
        self._channels: dict[int, seal.Channel] = {}
        self._device_of: dict[int, bytes] = {}  # by session: who
        self._used: Counter[bytes] = Counter()  # rounds in which a device's embeddings were used
        self._last_session = 0
        self._begun = 0
        self._round: Sitting | None = None
        self._last_round = 0
        self._answers |= {
            Order.HELLO: self._hello,
            Order.FORGET: self._forget,
            Order.BEGIN: self._begin,
            Order.SEALED: self._sealed,
            Order.DERIVE: self._derive,
            Order.AGGREGATE: self._aggregate,
        }

    def largest_frame(self) -> int:
        plan = self._plan
        return 256 + max(DIGEST + packed_size(plan.samples, plan.dim), packed_size(1, plan.parameters))

    def _quote(self, nonce: bytes) -> bytes:
        """A quote, with which one session can be opened."""
        if not self._nonces.get(nonce, True):
            raise Denied("nonce")
        found = super()._quote(nonce)
        self._nonces[nonce] = True
        if len(self._nonces) > _MOST_NONCES:
            del self._nonces[next(iter(self._nonces))]
        return found

    def _hello(self, message: bytes) -> bytes:
        nonce = message[: seal.SIZE]
        if not self._nonces.get(nonce):
            raise Denied("nonce")
        secret, device = seal.heard(self._private, self._digest, message)
        session = self._last_session + 1
        channel, welcome = seal.answer(self._private, self._digest, session, message, secret, self._used[device])
        self._nonces[nonce] = False
        self._last_session = session
        self._channels[session], self._device_of[session] = channel, device
        self.accepted["hello"] += 1
        return welcome

    def _forget(self, payload: bytes) -> bytes:
        session = _number(payload)
        if self._channels.pop(session, None) is None:
            raise Denied("session")
        device = self._device_of.pop(session)
        if self._round is not None and self._round.emb.pop(session, None) is not None:
            self._round.devices.discard(device)
        return b""

    def _begin(self, payload: bytes) -> bytes:
        """A new round; one that is still open is given up."""
        number, network = _number(payload[: _NUMBER.size]), payload[_NUMBER.size :]
        if len(network) != DIGEST:
            raise Denied("size")
        if number <= self._last_round or self._begun >= self._plan.rounds:
            raise Denied("round")
        self._round, self._last_round, self._begun = Sitting(number, network), number, self._begun + 1
        return b""

    def _sealed(self, message: bytes) -> bytes:
        """Embeddings (step 4) or a gradient (step 8)."""
        claimed, session = seal.addressed(message)
        channel = self._channels.get(session)
        if channel is None:
            raise Denied("session")
        if self._round is None:
            raise Denied("state")
        plan, current = self._plan, self._round
        if claimed == Content.EMBEDDINGS:
            text = channel.open(Content.EMBEDDINGS, current.number, message)
            emb_BD = unpack(text[DIGEST:], plan.samples, plan.dim)
            if text[:DIGEST] != current.network:
                raise Denied("network")
            device = self._device_of[session]
            if current.sizes or device in current.devices:
                raise Denied("state")
            if plan.most and self._used[device] >= plan.most:
                raise Denied("spent")
            current.emb[session] = emb_BD
            current.devices.add(device)
            self.accepted["embeddings"] += 1
        elif claimed == Content.GRADIENT:
            text = channel.open(Content.GRADIENT, current.number, message)
            grad_1P = unpack(text, 1, plan.parameters)
            if current.closed or session not in current.sizes or session in current.given:
                raise Denied("state")
            part_P = current.sizes[session] * clipped(grad_1P, plan.gradient_clip)[0]
            current.sum_P = part_P if current.sum_P is None else current.sum_P + part_P
            current.given.add(session)
            self.accepted["gradient"] += 1
        else:
            raise Denied("field")
        return b""

    def _derive(self, payload: bytes) -> bytes:
        """Steps 5 and 6 with Algorithm 2: noised derivatives; an embedding that was dropped has none, its row is 0."""
        current = self._present(payload)
        if current.sizes:
            raise Denied("state")
        if len(current.emb) < self._plan.participants:
            raise Denied("few")
        sessions = sorted(current.emb)
        sizes = [len(current.emb[session]) for session in sessions]
        emb_SD = clipped(np.concatenate([current.emb[session] for session in sessions]), self._plan.embedding_clip)
        label_S = np.repeat(np.arange(len(sessions)), sizes)
        kept_S = kept(len(emb_SD), self._mechanism.drop, self._draw)
        grad_SD = np.zeros_like(emb_SD)
        if self._loss.keeps:
            devices = [self._device_of[session] for session in sessions]
            grad_SD, current.vectors = self._compared(emb_SD, devices, sizes)
        elif kept_S.any():
            grad_SD[kept_S] = losses.value_and_derivatives(emb_SD[kept_S], label_S[kept_S], self._loss)[1]
        out = [_LENGTH.pack(len(sessions))]
        for session, start, size in zip(sessions, np.cumsum(sizes) - sizes, sizes):
            grad_BD, kept_B = grad_SD[start : start + size], kept_S[start : start + size]
            grad_BD[kept_B] = noised(grad_BD[kept_B], self._mechanism, self._draw)
            message = self._channels[session].seal(Content.DERIVATIVES, current.number, pack(grad_BD))
            out += [_LENGTH.pack(len(message)), message]
        self._used.update(self._device_of[session] for session in sessions)
        current.sizes = dict(zip(sessions, sizes))
        current.emb.clear()
        return b"".join(out)

    def _compared(
        self, emb_SD: NDArray[np.float64], devices: list[bytes], sizes: list[int]
    ) -> tuple[NDArray[np.float64], dict[bytes, NDArray[np.float64]]]:
        """(derivatives by the embeddings, all class vectors after the round); who is absent is a negative too."""
        place = {name: row for row, name in enumerate(dict.fromkeys([*self._vectors, *devices]))}
        table_CD = np.zeros((len(place), self._plan.dim))
        for name, vector_D in self._vectors.items():
            table_CD[place[name]] = vector_D
        label_S = np.repeat([place[name] for name in devices], sizes)
        table_CD = losses.first_vectors(emb_SD, label_S, table_CD)
        _, grad_SD, grad_CD = losses.margin_softmax(emb_SD, label_S, table_CD, self._loss)
        return grad_SD, dict(zip(place, losses.moved_vectors(table_CD, grad_CD, self._loss)))

    def _aggregate(self, payload: bytes) -> bytes:
        """Step 9, equation (2): the gradients that are in, each weighted by |d_i| / |D|."""
        current = self._present(payload)
        if current.closed or not current.sizes:
            raise Denied("state")
        if len(current.given) < self._plan.gradients or current.sum_P is None:
            raise Denied("few")
        total = sum(current.sizes[session] for session in current.given)
        mean_P = current.sum_P / total
        current.closed, current.sum_P = True, None
        self._vectors |= current.vectors
        return pack(mean_P[None])

    def _now(self) -> dict[str, Any]:
        now = self._round or Sitting(0, b"")
        return {
            "sessions": len(self._channels),
            "round": now.number,
            "embeddings": len(now.emb) or len(now.sizes),
            "gradients": len(now.given),
        }

    def _present(self, payload: bytes) -> Sitting:
        if self._round is None or _number(payload) != self._round.number:
            raise Denied("round")
        return self._round


def _number(payload: bytes) -> int:
    if len(payload) != _NUMBER.size:
        raise Denied("size")
    number: int = _NUMBER.unpack(payload)[0]
    return number
