"""Binary BCH codes: primitive, narrow-sense, of length n = 2^m - 1 (Bose and Ray-Chaudhuri, 1960).

A polynomial over GF(2) is a Python integer whose bit i is the coefficient of x^i. The generator of a code is the least
common multiple of the minimal polynomials of alpha, alpha^2, ..., alpha^(d-1), where alpha is a root of `PRIMITIVE[m]`
and d is the designed distance: any two codewords differ in at least d places. Tests hold the codes to galois's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from selfsame.errors import SelfsameError

Bits = npt.NDArray[np.uint8]

# The usual primitive polynomial of each degree (Lin and Costello, Table 2.7): the exponents between x^m and 1.
PRIMITIVE = {
    3: (1,),
    4: (1,),
    5: (2,),
    6: (1,),
    7: (3,),
    8: (4, 3, 2),
    9: (4,),
    10: (3,),
    11: (2,),
    12: (6, 4, 1),
    13: (4, 3, 1),
    14: (10, 6, 1),
}


@dataclass(frozen=True)
class BCH:
    """One code: `k` message bits become `n`, and any two codewords differ in `designed_distance` bits or more."""

    n: int
    k: int
    designed_distance: int
    generator: int

    @cached_property
    def _parity_KP(self) -> npt.NDArray[np.float32]:
        """Row i is x^(n-1-i) modulo the generator, highest power first: what message bit i adds to the parity bits."""
        checks = self.n - self.k
        top, pad = 1 << checks, -checks % 8
        rows, power = [], self.generator ^ top
        for _ in range(self.k):
            rows.append((power << pad).to_bytes((checks + pad) // 8, "big"))
            power <<= 1
            power ^= self.generator if power & top else 0
        packed = np.frombuffer(b"".join(reversed(rows)), dtype=np.uint8).reshape(self.k, -1)
        return np.unpackbits(packed, axis=1, count=checks).astype(np.float32)

    def encode(self, message: Bits) -> Bits:
        """The codewords of messages of 0s and 1s, shape (..., k) to (..., n): the message, then its parity bits."""
        # Counts stay below 2^24, so that the float product is exact; it is far faster than NumPy's integer product.
        parity = (message.astype(np.float32) @ self._parity_KP).astype(np.int32) & 1
        return np.concatenate([message, parity.astype(np.uint8)], axis=-1)


@lru_cache(maxsize=64)
def bch_code(n: int, k: int) -> BCH:
    """The code of length n for messages of k bits."""
    table = codes(n)
    distance = dict(table).get(k)
    if distance is None:
        nearest = min((valid for valid, _ in table), key=lambda valid: abs(valid - k))
        raise SelfsameError(f"BCH: no code of length {n} has {k} message bits, the nearest has {nearest}")
    exp, log = _field(n.bit_length())
    generator = 1
    for coset in _cosets(n):
        if coset[0] >= distance:
            break
        generator = _product(generator, _minimal(coset, exp, log))
    return BCH(n, k, distance, generator)


@lru_cache(maxsize=16)
def codes(n: int) -> tuple[tuple[int, int], ...]:
    """Every (message length, designed distance) at length n, longest message first; all correct at least one error."""
    cosets = _cosets(n)
    found, k = [], n
    for coset, following in zip(cosets, [*(later[0] for later in cosets[1:]), n]):
        k -= len(coset)
        found.append((k, following))  # every power of alpha below the next coset's first is a root already
    return tuple(found)


@lru_cache(maxsize=16)
def _cosets(n: int) -> tuple[tuple[int, ...], ...]:
    """The exponents 1 .. n-1 in classes closed under doubling modulo n, by smallest member, which comes first."""
    lengths = [2**m - 1 for m in PRIMITIVE]
    if n not in lengths:
        raise SelfsameError(f"BCH: the code length must be one of {', '.join(map(str, lengths))}, got {n}")
    seen, found = bytearray(n), []
    for first in range(1, n, 2):
        if seen[first]:
            continue
        coset = [first]
        while (following := 2 * coset[-1] % n) != first:
            coset.append(following)
        for exponent in coset:
            seen[exponent] = 1
        found.append(tuple(coset))
    return tuple(found)


@lru_cache(maxsize=16)
def _field(m: int) -> tuple[list[int], list[int]]:
    """GF(2^m): powers of alpha by exponent, and exponents by power (the one for 0 is never read)."""
    modulus = sum(1 << exponent for exponent in (m, *PRIMITIVE[m], 0))
    exp, log, power = [], [0] * (1 << m), 1
    for exponent in range((1 << m) - 1):
        exp.append(power)
        log[power] = exponent
        power <<= 1
        power ^= modulus if power >> m else 0
    return exp, log


def _minimal(coset: tuple[int, ...], exp: list[int], log: list[int]) -> int:
    """The polynomial over GF(2) whose roots are alpha to the exponents of one coset."""
    poly = [1]  # coefficients in GF(2^m), lowest power first
    for exponent in coset:
        times_root = [exp[(log[a] + exponent) % len(exp)] if a else 0 for a in poly]
        poly = [low ^ high for low, high in zip([*times_root, 0], [0, *poly])]
    return sum(bit << power for power, bit in enumerate(poly))


def _product(a: int, b: int) -> int:
    """The product of two polynomials over GF(2)."""
    total = 0
    while b:
        total ^= a if b & 1 else 0
        a, b = a << 1, b >> 1
    return total
