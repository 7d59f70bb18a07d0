"""BCH codes against galois, against brute force, and against Table 1 of the FedUV paper."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.methods.bch import PRIMITIVE, _cosets, _field, _minimal, bch_code, codes

SMALL = [(n, k) for n in (7, 15, 31, 63) for k, _ in codes(n)]

# (n, k): the generator that galois 0.4.11 gives; it takes seconds a field, so only the smallest is asked live.
GENERATORS = {
    (31, 11): 0x1626D5,
    (63, 36): 0x86E8113,
    (127, 64): 0xA1AB815BC7EC8025,
    (255, 71): 0x140A722A1A468D36D87A25364E685922A1E56FD1A478C1D,
    (511, 67): int(
        "1bd14f93f5736aff6a9f8aa73a02856842b2ea071ad9bdc0d11de984"
        "2fbdc0459c1024bfb0e5dfbd44b01d21df55a5c18035aa69e3680621",
        16,
    ),
}


def as_int(bits: np.ndarray) -> int:
    """A codeword as a polynomial: its first bit is the highest power."""
    return int("".join(map(str, bits)), 2)


def remainder(a: int, b: int) -> int:
    while a.bit_length() >= b.bit_length():
        a ^= b << (a.bit_length() - b.bit_length())
    return a


def messages(k: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, 1), min_size=k, max_size=k).map(lambda bits: np.array(bits, dtype=np.uint8))


@pytest.mark.parametrize(("n", "k", "distance"), [(127, 64, 21), (255, 71, 59), (511, 67, 175)])
def test_table_1(n, k, distance):
    assert min(valid for valid, _ in codes(n) if valid >= 64) == k
    assert bch_code(n, k).designed_distance == distance


def test_the_textbook_codes_of_length_15():
    assert codes(15) == ((11, 3), (7, 5), (5, 7), (1, 15))
    assert [bch_code(15, k).generator for k in (11, 7, 5)] == [0b10011, 0b111010001, 0b10100110111]


@pytest.mark.parametrize("m", PRIMITIVE)
def test_every_length_has_a_field_whose_alpha_generates_it(m):
    exp, log = _field(m)
    assert sorted(exp) == list(range(1, 2**m))
    assert [log[power] for power in exp] == list(range(2**m - 1))
    assert sum(map(len, _cosets(2**m - 1))) == 2**m - 2


def test_minimal_polynomials_vanish_at_their_roots_and_nowhere_else():
    n = 63
    exp, log = _field(6)
    for coset in _cosets(n):
        poly = _minimal(coset, exp, log)
        assert poly.bit_length() == len(coset) + 1
        for point in range(n):
            value = 0
            for power in range(poly.bit_length()):
                value ^= exp[point * power % n] if poly >> power & 1 else 0
            assert (value == 0) == (point in coset)


@pytest.mark.parametrize(("n", "k"), SMALL)
def test_the_generator_divides_the_whole_space(n, k):
    code = bch_code(n, k)
    assert code.generator.bit_length() == n - k + 1
    assert remainder((1 << n) | 1, code.generator) == 0


@pytest.mark.parametrize(
    ("n", "k", "distance"), [(7, 4, 3), (15, 11, 3), (15, 7, 5), (15, 5, 7), (31, 16, 7), (31, 11, 11), (31, 6, 15)]
)
def test_minimum_distance_by_brute_force(n, k, distance):
    """The code is linear, so its minimum distance is the least weight of a codeword other than zero."""
    every = np.array(list(itertools.product((0, 1), repeat=k)), dtype=np.uint8)
    weights = bch_code(n, k).encode(every).sum(1)
    assert weights[0] == 0
    assert weights[1:].min() == distance == bch_code(n, k).designed_distance


@given(st.sampled_from([*SMALL, *GENERATORS]).flatmap(lambda nk: st.tuples(st.just(nk), messages(nk[1]))))
def test_a_codeword_is_systematic_and_a_multiple_of_the_generator(case):
    (n, k), message = case
    code = bch_code(n, k)
    word = code.encode(message)
    assert word.shape == (n,)
    assert (word[:k] == message).all()
    assert remainder(as_int(word), code.generator) == 0


@given(st.sampled_from(SMALL).flatmap(lambda nk: st.tuples(st.just(nk), messages(nk[1]), messages(nk[1]))))
def test_linear(case):
    (n, k), a, b = case
    code = bch_code(n, k)
    assert (code.encode(a ^ b) == code.encode(a) ^ code.encode(b)).all()


@settings(max_examples=50)
@given(messages(64), messages(64))
def test_pairs_of_the_papers_shortest_code_are_far_apart(a, b):
    code = bch_code(127, 64)
    differ = int((code.encode(a) != code.encode(b)).sum())
    assert differ >= 21 if (a != b).any() else differ == 0


def test_rows_are_encoded_as_they_are_alone():
    code = bch_code(127, 64)
    rows = np.random.default_rng(0).integers(0, 2, (3, 4, 64))
    together = code.encode(rows)
    assert together.shape == (3, 4, 127)
    assert all((together[i, j] == code.encode(rows[i, j])).all() for i in range(3) for j in range(4))
    assert code.encode(np.zeros((0, 64), dtype=np.uint8)).shape == (0, 127)


def test_the_longest_code_sums_exactly():
    """More message bits than any smaller type could count: the parity of thousands of ones is still exact."""
    n = 16383
    code = bch_code(n, codes(n)[0][0])
    assert remainder(as_int(code.encode(np.ones(code.k, dtype=np.uint8))), code.generator) == 0


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: bch_code(127, 66), "no code of length 127 has 66 message bits, the nearest has 64"),
        (lambda: bch_code(15, 15), "nearest has 11"),
        (lambda: bch_code(15, -3), "nearest has 1"),
        (lambda: bch_code(100, 64), "code length must be one of 7, 15, 31"),
        (lambda: bch_code(3, 1), "code length must be one of"),
        (lambda: bch_code(32767, 64), "code length must be one of"),
    ],
)
def test_bad_input_gets_one_line(ask, says):
    with pytest.raises(SelfsameError, match=says) as error:
        ask()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("n", "k"), GENERATORS)
def test_generators_as_galois_gives_them(n, k):
    assert bch_code(n, k).generator == GENERATORS[n, k]


@pytest.mark.skipif(
    os.environ.get("SELFSAME_CASES") != "fuzz",
    reason="compiles itself for half a minute; make fuzz asks it, where it is installed",
)
def test_galois_agrees():
    galois = pytest.importorskip("galois")
    for m, between in PRIMITIVE.items():
        assert int(galois.matlab_primitive_poly(2, m)) == sum(1 << power for power in (m, *between, 0))
    for k, _ in codes(15):
        code = galois.BCH(15, k)  # given k alone, it looks for the largest distance itself
        ours = bch_code(code.n, code.k)
        assert (ours.designed_distance, ours.generator) == (code.d, int(code.generator_poly))
        rows = np.random.default_rng(0).integers(0, 2, (20, code.k), dtype=np.uint8)
        assert (ours.encode(rows) == np.asarray(code.encode(galois.GF2(rows)))).all()
