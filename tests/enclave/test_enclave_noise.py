"""Algorithm 2's noise: the formula by hand, the distribution, the clip, the grid."""

import inspect
import math
import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from selfsame.enclave import noise
from selfsame.enclave.noise import Mechanism, kept, noised


def seeded(seed=0):
    return np.random.default_rng(seed).bytes


def silent(count):
    """Bytes that make every uniform number one and so all noise nothing."""
    return b"\xff" * count


def uniforms(data):
    """In whole numbers, rounded once."""
    return [(2 * ((high << 64) + low) + 1) / 2**129 for high, low in struct.iter_unpack("<QQ", data)]


def test_outside_tests_it_is_the_systems_generator():
    for function in (kept, noised):
        assert inspect.signature(function).parameters["draw"].default is os.urandom


def test_laplace_by_hand():
    grad, clip, scale = np.random.default_rng(1).normal(size=(3, 2)), 0.5, 0.3
    drawn, source = [], seeded(2)
    got = noised(grad, Mechanism("laplace", 0, clip, scale), lambda n: drawn.append(source(n)) or drawn[-1])
    far, side = uniforms(drawn[0]), uniforms(drawn[1])
    step = 2.0**-22  # 0.3 is in [2^-2, 2^-1)
    for i, value in enumerate(grad.ravel()):
        clipped = max(-clip, min(clip, float(value)))
        shift = -scale * math.log(far[i]) * (1 if side[i] > 0.5 else -1)
        exact = (math.trunc(clipped / step) + round(shift / step)) * step
        assert abs(got.ravel()[i] - exact) <= (step if abs(shift / step % 1 - 0.5) < 1e-6 else 0)


def test_gaussian_by_hand():
    grad, clip, scale = np.random.default_rng(1).normal(size=(3, 2)), 0.5, 1.5
    drawn, source = [], seeded(2)
    got = noised(grad, Mechanism("gaussian", 0, clip, scale), lambda n: drawn.append(source(n)) or drawn[-1])
    far, turn = uniforms(drawn[0]), uniforms(drawn[1])
    length = math.sqrt(sum(float(v) ** 2 for v in grad.ravel()))
    step = 2.0**-20  # 1.5 is in [1, 2)
    for i, value in enumerate(grad.ravel()):
        shift = scale * math.sqrt(-2 * math.log(far[i])) * math.cos(2 * math.pi * turn[i])
        exact = float(value) * clip / length + shift
        assert abs(got.ravel()[i] - exact) <= 1.5 * step


@pytest.mark.parametrize(("kind", "law"), [("laplace", stats.laplace), ("gaussian", stats.norm)])
def test_the_noise_has_its_distribution(kind, law):
    got = noised(np.zeros((200, 200)), Mechanism(kind, 0, 1.0, 2.5), seeded(3)).ravel() / 2.5
    assert stats.kstest(got, law.cdf).pvalue > 0.01
    assert abs(np.mean(got)) < 0.03
    assert np.mean(got**2) == pytest.approx(law.var(), rel=0.03)


def test_coordinates_are_clipped_for_laplace():
    grad = np.array([[3.0, -3.0, 0.25]])
    assert noised(grad, Mechanism("laplace", 0, 0.5, 1.0), silent).tolist() == [[0.5, -0.5, 0.25]]


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_neither_clip_is_exceeded(values, clip, scale):
    grad = np.reshape(values, (2, 2))
    assert np.abs(noised(grad, Mechanism("laplace", 0, clip, scale), silent)).max() <= clip
    length = np.linalg.norm(noised(grad, Mechanism("gaussian", 0, clip, scale), silent))
    assert length <= clip * (1 + 1e-12)
    if np.linalg.norm(grad) > clip:
        assert length >= clip - 2 * scale * 2**-20 - 1e-12 * clip


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3), st.sampled_from(["laplace", "gaussian"]))
def test_what_can_come_out_does_not_depend_on_the_value(value, scale, kind):
    got = noised(np.full((1, 8), value), Mechanism(kind, 0, 1e3 * scale, scale), seeded(4))
    step = 2.0 ** (math.frexp(scale)[1] - 21)
    assert np.array_equal(got / step, np.rint(got / step))
    assert step <= scale * 2**-20


def test_none_changes_nothing():
    grad = np.random.default_rng(0).normal(size=(2, 3))
    assert np.array_equal(noised(grad, Mechanism("none")), grad)


def test_drop_rate():
    assert kept(10, 0.0, silent).all()
    assert np.mean(kept(100_000, 0.2, seeded(5))) == pytest.approx(0.8, abs=0.005)
    assert kept(0, 0.2).shape == (0,)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_uniform_numbers_are_in_range(high, low):
    (u,) = noise._uniform(1, lambda n: struct.pack("<QQ", high, low))
    assert 0 < u <= 1
    assert math.isclose(u, (2 * ((high << 64) + low) + 1) / 2**129, rel_tol=1e-15)


@given(st.integers(21, 127), st.integers(0, 2**128 - 1))
def test_laplaces_grid_has_no_hole_before_74_scales(bits, rest):
    """Of neighbours among the numbers that can be drawn, about 2^(bits - 128), noise is a step apart at most."""
    word = (1 << bits) + rest % (1 << bits)
    draws = [struct.pack("<QQ", k >> 64, k & (2**64 - 1)) for k in (word, word + 1)]
    far, near = (-math.log(float(noise._uniform(1, lambda n, d=d: d)[0])) for d in draws)
    assert 0 <= far - near <= 2.0**-21 + 1e-12
    assert far < 74 or bits < 22


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "cauchy"},
        {"kind": "laplace", "drop": 1.0},
        {"kind": "laplace", "drop": -0.1},
        {"kind": "laplace", "clip": 0.0},
        {"kind": "laplace", "clip": math.nan},
        {"kind": "laplace", "scale": 0.0},
        {"kind": "laplace", "scale": "1"},
        {"kind": "laplace", "clip": 1e20, "scale": 1.0},
    ],
)
def test_bad_mechanisms(bad):
    with pytest.raises(ValueError, match="privacy"):
        Mechanism(**bad)
