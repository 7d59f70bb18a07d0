"""FedUV: federated user verification without sharing embeddings (Hosseini et al., 2021).

The network ends in c outputs, z = W g(x). Every owner holds a secret codeword v of an error-correcting code and trains
the network to answer v on the owner's samples (Algorithm 2). Codewords of different owners are far apart by
construction, so a loss without negatives is enough (Theorem 1), and nobody has to be told anybody's codeword.

The declared fields keep the codeword on the device; the network update does not hide it. The gradient of (4) in z is
along -v but for a part along z that is small while the loss is large, and the last layer's update carries it: a server
that reads a single client's update reads v off its signs. Aggregate securely where that server is not trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from secrets import token_bytes
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, LocalLoss, Rate, World, option, put_rows, sample_mean, unit
from selfsame.methods.bch import BCH, Bits, bch_code, codes
from selfsame.methods.update_attack import Seen, by_signs
from selfsame.methods.wire import Bound, Sight, Wire
from selfsame.streams import Stream

_ODD, _OFFSET = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_SHARED = "devices of one owner hold one codeword: the owner copies it from device to device, never through the server"
_SIGNS = Bound(1.0, "sqrt(D)")  # the length of a codeword, whose entries are signs


@dataclass(frozen=True)
class FedUV(LocalLoss):
    """Codewords stay on the device and the loss has no negatives: (4) with lambda = 0.

    `score` is the cosine, and that is (5): for v in {-1, 1}^c, (1/c) v . sigma(z) = v . z / (|v| |z|).
    """

    code_length: int = 127  # c, the bits of a codeword and the width of the embedding
    message_length: int = 0  # 0: chosen by `code`
    base_bits: int = option(32, "[1, 64]")  # l_b, at most half of the message: see `issued_bits`
    # "system": the device's cryptographic generator; "seeded": simulations that repeat.
    secrets: str = option("system", ("system", "seeded"))

    name: ClassVar[str] = "feduv"
    paper: ClassVar[str] = (
        "Hosseini et al., Federated Learning of User Verification Models Without Sharing Embeddings, 2021"
    )
    shared_class: ClassVar[str] = _SHARED
    wire: ClassVar[Wire] = Wire(
        own={
            "codeword": "the owner's secret vector: encodes a base vector that the server issued at registration "
            "and knows, then random bits that never leave the device"
        }
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.code

    @cached_property
    def code(self) -> BCH:
        """The block code C.

        Without a message length, that of Section 6.2: the smallest of 64 bits or more. A code too short for that takes
        the longest message whose designed distance is, relative to the length, no worse than that of (127, 64).
        """
        n, k = self.code_length, self.message_length
        if not k and n >= 127:
            k = min(valid for valid, _ in codes(n) if valid >= 64)
        elif not k:
            k = max(valid for valid, distance in codes(n) if distance * 127 >= 21 * n)
        return bch_code(n, k)

    @property
    def issued_bits(self) -> int:
        """How long base vectors are: `base_bits`, but the owner's secret is never the shorter part of the message.

        Hyper-parameters alone decide, not the number of users: the base vectors of those who join later stay unique.
        """
        return min(self.base_bits, self.code.k // 2)

    @property
    def open_secrets(self) -> bool:
        return self.secrets == "seeded"

    def check(self, world: World) -> None:
        if world.classes > 2**self.issued_bits:
            option = "base_bits" if self.base_bits < self.code.k // 2 else "code_length"
            raise SelfsameError(
                f"{self.name}: {world.classes} classes need more than {self.issued_bits} base bits "
                f"(code_length {self.code.n}, {self.code.k} message bits): raise {option}"
            )

    def width(self, asked: int) -> int:
        """The code length, whatever was asked: the network ends in W g(x)."""
        return self.code_length

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        """Codeword selection (Algorithm 2): v = C(b || r), one per owner. Clients register in order of their ids."""
        self.check(world)
        class_N = world.class_of_N.cpu().numpy()
        by_id_R = np.argsort(client_R.cpu().numpy(), kind="stable")
        class_R = class_N[client_R.cpu().numpy()[by_id_R]]
        # Of several devices of an owner, the one with the lowest id draws, and U owners draw in all.
        class_U, first_U, owner_R = np.unique(class_R, return_index=True, return_inverse=True)
        secret_UL = self._draw(stream, by_id_R[first_U])
        message_UK = np.concatenate([base_vectors(class_U, self.issued_bits), secret_UL], axis=1)
        v_UD = self.code.encode(message_UK).astype(np.float32) * 2 - 1
        if own is not None and len(own["codeword"]):
            there_U, row_U = np.unique(class_N[: len(own["codeword"])], return_index=True)
            _, again, known = np.intersect1d(class_U, there_U, assume_unique=True, return_indices=True)
            v_UD[again] = own["codeword"][torch.from_numpy(row_U[known])].cpu().numpy()
        v_RD = np.empty((len(by_id_R), self.code_length), dtype=np.float32)
        v_RD[by_id_R] = v_UD[owner_R]
        return {"codeword": torch.from_numpy(v_RD).to(client_R.device)}

    def _draw(self, stream: Stream, row_U: npt.NDArray[np.intp]) -> Bits:
        """The secret bits r of some rows of the stream: shape (U, l_r)."""
        length = self.code.k - self.issued_bits
        if self.open_secrets:
            drawn = Stream(stream.key_M[torch.from_numpy(row_U).to(stream.key_M.device)]).bits(length)
            return (drawn & 1).cpu().numpy().astype(np.uint8)
        size = (length + 7) // 8
        packed = np.frombuffer(token_bytes(len(row_U) * size), dtype=np.uint8).reshape(-1, size)
        return np.unpackbits(packed, axis=1, count=length)

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """The positive term of (4), averaged over samples: max(0, 1 - (1/c) v . sigma(z))."""
        agree_MB = (mine["codeword"][:, None] * scaled(emb_MBD)).mean(-1)
        return sample_mean((1 - agree_MB).clamp(min=0), mask_MB)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["codeword"]

    def attack_updates(self, seen: Seen) -> Tensor:
        """(4) pulls along v less a part along z: v is the one vector of equal sizes in their plane."""
        return by_signs(seen)


@dataclass(frozen=True)
class FedUVNegative(FedUV):
    """FedUV with the negative term of (3) and (4), as in Fig. 3, for comparison: everybody must see every codeword."""

    negative_weight: float = option(1.0, "[0, inf)")  # lambda of (3)

    name: ClassVar[str] = "feduv-negative"
    wire: ClassVar[Wire] = Wire(
        own={"codeword": "the owner's vector: not a secret here, a copy of it is published"},
        up={"codeword": (Sight.PUBLIC, "the owner's codeword itself", _SIGNS)},
        down={
            "codewords": (Sight.PUBLIC, "the codewords of all clients that have reported, zero for the others", _SIGNS)
        },
    )

    def begin_server(self, world: World, stream: Stream) -> Fields:
        return {"codewords": torch.zeros(world.clients, self.code_length, device=world.class_of_N.device)}

    def send(self, server: Fields, who: Cohort) -> Fields:
        return {"codewords": server["codewords"]}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(3) with the terms of (4): the positive one and lambda max over others of (1/c) v_u . sigma(z)."""
        v_MD, table_ND = mine["codeword"], sent["codewords"]
        # Codewords of two owners differ in the designed distance or more: a closer row is this owner's too.
        same_MN = v_MD.to(table_ND.dtype) @ table_ND.T > self.code_length - self.code.designed_distance
        other_MN = ~same_MN & (table_ND != 0).any(1)
        agree_MBN = scaled(emb_MBD) @ table_ND.to(emb_MBD.dtype).T / self.code_length
        worst_MB = agree_MBN.masked_fill(~other_MN[:, None], -2.0).amax(-1)  # below every correlation
        negative_MB = torch.where(other_MN.any(1)[:, None], worst_MB, 0.0)
        positive_M = super().loss(emb_MBD, mask_MB, mine, sent, head, who)
        return positive_M + self.negative_weight * sample_mean(negative_MB, mask_MB)

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        return {}, {"codeword": mine["codeword"].clone()}

    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        """Keep each report, as signs: whatever a client claims, its row weighs no more than a codeword."""
        put_rows(server["codewords"], who.client_M, leaves["codeword"].sign(), who.alive_M)

    def shows(self) -> str:
        return f"{self.name}: the codeword is published"

    def exposed(self, server: Fields, head: Fields) -> Tensor | None:
        return server["codewords"]


def scaled(z: Tensor) -> Tensor:
    """sigma: z scaled to length sqrt(c) along its last axis of c entries."""
    return unit(z) * z.shape[-1] ** 0.5


def base_vectors(class_ids: npt.NDArray[np.integer[Any]], bits: int) -> Bits:
    """The base vector b of each class, highest bit first, shape (U, bits): unique without a list of those issued.

    The number behind it is id * odd + offset modulo 2^bits, and an odd factor has an inverse there.
    """
    number_U = class_ids.astype(np.uint64) * _ODD + _OFFSET
    return ((number_U[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint64)) & np.uint64(1)).astype(np.uint8)
