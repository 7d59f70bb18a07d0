"""What the devices of a run agree to about sums: how updates travel, how long they may be, who takes masks off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from selfsame.config.recipe import AGGREGATIONS
from selfsame.engine.problem import Problem
from selfsame.errors import SelfsameError
from selfsame.fields import one_of, read_fields
from selfsame.files import read_json, write_json
from selfsame.methods.poll import Poll
from selfsame.privacy.fixed import FixedPoint

CAP = 1000  # the most samples that weigh, where a recipe sets no cohort.cap
ENCLAVE = "enclave"  # the name of the helper that is the run's own enclave
_HELPED = b"selfsame helper 1\n"
_MOST = 2**24


@dataclass(frozen=True)
class HelperTerms:
    """Somebody who takes masks off: its registered key, and the key that seeds are sealed to, signed by the former.

    All empty: the run's attested enclave, whose key comes with its quote.
    """

    public: str  # PEM
    key: str  # X25519, in hexadecimal digits
    signature: str

    @cached_property
    def name(self) -> str:
        """The helper's name as a node."""
        from selfsame.enclave.records import node_name

        return ENCLAVE if self.enclosed else node_name(self.public.encode())

    @property
    def enclosed(self) -> bool:
        """Whether it is the run's enclave."""
        return not (self.public or self.key or self.signature)

    @cached_property
    def recipient(self) -> bytes:
        """The key that seeds are sealed to; refused unless the registered key has signed it."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA384
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key, signature = bytes.fromhex(self.key), bytes.fromhex(self.signature)
            public = load_pem_public_key(self.public.encode())
            if len(key) != 32 or not isinstance(public, ec.EllipticCurvePublicKey):
                raise ValueError
            public.verify(signature, _HELPED + key, ec.ECDSA(SHA384()))
        except (ValueError, InvalidSignature, UnsupportedAlgorithm):
            raise SelfsameError("helper: its key is not signed by the key that it is registered with") from None
        return key

    @staticmethod
    def signed(private: Any, key: bytes) -> HelperTerms:
        """The terms of a helper, by its registered private key."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA384
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        return HelperTerms(public, key.hex(), private.sign(_HELPED + key, ec.ECDSA(SHA384())).hex())

    @staticmethod
    def read(path: Path) -> HelperTerms:
        """A NAME.helper file, as `selfsame cluster keys --helper` writes it."""
        found = read_fields(path.name, read_json(path), HelperTerms)
        _ = found.recipient
        return found

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """The recipe's [sums] with every number filled in."""

    aggregation: str = "clear"
    numbers: int  # of a contribution: the network's parameters, and the weight
    clip: float  # the longest update
    cap: int = 1  # the most samples that weigh; 1: everybody weighs the same
    group: int = 0  # the least members of a group
    least: int = 0  # of whom so many must have answered
    most: int = 0  # the most members of a group
    stand_ins: int = 0
    reach: float = 0.0
    bits: int = 32
    noise: float = 0.0  # deviation of the noise on a sum, in clips
    quiet: float = 0.0
    helpers: tuple[HelperTerms, ...] = ()

    @staticmethod
    def of(problem: Problem, size: int, helpers: Sequence[HelperTerms] = ()) -> SumTerms:
        """The terms of a problem whose groups have at least so many members."""
        part, cohort, theta_P = problem.recipe.sums, problem.recipe.cohort, problem.model.first_theta
        # In the clear a clip is no more than a guard against nonsense, and honest updates keep clear of it.
        clip = part.clip or (1 if part.summed else 10) * float(theta_P.double().norm())
        cap = 1 if cohort.weights == "uniform" else cohort.cap or CAP
        numbers = problem.model.parameters + 1
        if not part.summed:
            return SumTerms(numbers=numbers, clip=clip, cap=cap)
        found = SumTerms(
            aggregation=part.aggregation,
            numbers=numbers,
            clip=clip,
            cap=cap,
            group=size,
            least=part.least or max(2, math.ceil(size / 2)),
            most=min((2 if part.bits == 16 else 4) * size, max(size, problem.world.clients)),
            stand_ins=part.stand_ins,
            reach=part.reach or clip,
            bits=part.bits,
            noise=part.noise,
            quiet=part.quiet,
            helpers=tuple(helpers),
        )
        found.check()
        return found

    def of_polls(self, poll: Poll) -> SumTerms:
        """The terms of polls: by the same helpers or enclave, over at least as many as the method asks for."""
        size = max(self.group, poll.least)
        found = replace(
            self,
            numbers=poll.numbers + 1,
            clip=poll.longest,
            cap=1,
            group=size,
            least=max(self.least, poll.least),
            most=max(self.most, 4 * size),
            reach=1.0,
            bits=32,
            noise=poll.noise,
            quiet=0.0,
        )
        found.check()
        return found

    @property
    def attested(self) -> bool:
        """Whether devices have to prove an enclave: it adds up, or takes masks off."""
        return self.aggregation == "enclave" or any(helper.enclosed for helper in self.helpers)

    @property
    def summed(self) -> bool:
        """Whether nobody sees one device's update."""
        return self.aggregation != "clear"

    @cached_property
    def code(self) -> FixedPoint:
        """How masked contributions are written. The noise of any `least` devices comes to that of the sum."""
        own = self.noise * self.clip / math.sqrt(self.least)
        return FixedPoint(self.clip, self.reach, self.bits, self.most, self.cap, own)

    def check(self) -> None:
        """Refuse what cannot work or would be unsafe."""
        one_of("sums.aggregation", self.aggregation, AGGREGATIONS)
        numbers = (self.numbers, self.cap, self.group, self.least, self.most, self.stand_ins)
        if not (all(0 <= number <= 2**31 for number in numbers) and 0 < self.clip < math.inf and self.cap >= 1):
            raise SelfsameError("agreement: a value of sums is out of range")
        if not self.summed:
            return
        if not (2 <= self.least <= self.group <= self.most <= _MOST):
            raise SelfsameError(
                f"sums.least: a sum over {self.group} devices of which {self.least} must have answered; "
                "groups (cohort.size) have 2 members at least, and so have those who must answer"
            )
        if self.noise and self.cap > 1:
            raise SelfsameError("sums.noise: hides no weights; set cohort.weights to uniform")
        if self.aggregation == "masked":
            if not self.helpers:
                raise SelfsameError("sums.aggregation: masked needs a helper; name one, or use clear or enclave")
            if len({helper.name for helper in self.helpers}) != len(self.helpers):
                raise SelfsameError("helpers: the same one twice")
            _ = self.code, [helper.recipient for helper in self.helpers if not helper.enclosed]
