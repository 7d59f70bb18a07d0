"""Algorithm 2 and the Gaussian mechanism, recomputed with plain loops, and held to their numpy twin in the enclave."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from selfsame.errors import SelfsameError
from selfsame.privacy.mechanisms import Gaussian, Laplace, clipped, keep, perturb, standard_laplace
from selfsame.streams import Stream

BOTH = [Laplace(0.5, 0.1, 0.3), Gaussian(2.0, 0.1, 0.3)]


def stream_of(clients, seed=0):
    return Stream.named(seed, "privacy", torch.arange(clients), 3)


def derivatives(clients=5, batch=4, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    mask_MB = torch.from_numpy(rng.random((clients, batch)) < 0.8)
    return torch.from_numpy(rng.normal(size=(clients, batch, dim)) * 2), mask_MB


def plainly_clipped(grad_BD, mask_B, mechanism):
    """One participant's derivatives within their bound, number by number."""
    rows = [[float(x) if there else 0.0 for x in row] for row, there in zip(grad_BD, mask_B)]
    if isinstance(mechanism, Laplace):
        return [[min(max(x, -mechanism.clip), mechanism.clip) for x in row] for row in rows]
    norm = math.sqrt(math.fsum(x * x for row in rows for x in row))
    return [[x * min(1.0, mechanism.clip / norm) if norm else 0.0 for x in row] for row in rows]


@pytest.mark.parametrize("mechanism", BOTH)
def test_clipping_is_the_formula(mechanism):
    grad_MBD, mask_MB = derivatives()
    grad_MBD[1] *= 0.01  # within the bound: must stay as it is
    mask_MB[2] = False  # a participant with nothing
    want = [plainly_clipped(g, m, mechanism) for g, m in zip(grad_MBD, mask_MB)]
    np.testing.assert_allclose(clipped(grad_MBD, mask_MB, mechanism), want, rtol=1e-14)


def test_what_one_participant_is_sent_lies_within_its_bound():
    grad_MBD, mask_MB = derivatives()
    inside = clipped(1e6 * grad_MBD, mask_MB, BOTH[1])
    assert inside.square().sum((1, 2)).sqrt().tolist() == pytest.approx([2.0] * 5)
    assert clipped(1e6 * grad_MBD, mask_MB, BOTH[0]).abs().max() == 0.5


@pytest.mark.parametrize("mechanism", BOTH)
def test_noise_is_added_where_a_sample_is_and_nowhere_else(mechanism):
    grad_MBD, mask_MB = derivatives()
    sent_MBD = perturb(grad_MBD, mask_MB, mechanism, stream_of(5))
    assert sent_MBD.dtype == torch.float64
    assert (sent_MBD[~mask_MB] == 0).all()
    moved_MBD = sent_MBD - clipped(grad_MBD, mask_MB, mechanism)
    assert (moved_MBD[mask_MB] != 0).all()


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_participant_is_sent_the_same_alone_as_in_a_cohort(mechanism):
    grad_MBD, mask_MB = derivatives()
    together = perturb(grad_MBD, mask_MB, mechanism, stream_of(5))
    for m in range(5):
        alone = Stream.named(0, "privacy", torch.tensor([m]), 3)
        torch.testing.assert_close(perturb(grad_MBD[m : m + 1], mask_MB[m : m + 1], mechanism, alone)[0], together[m])
        assert torch.equal(keep(mask_MB[m : m + 1], mechanism, alone)[0], keep(mask_MB, mechanism, stream_of(5))[m])


def test_noise_has_the_stated_distribution():
    zero_MBD, mask_MB = torch.zeros(1000, 4, 5), torch.ones(1000, 4, dtype=torch.bool)
    laplace = perturb(zero_MBD, mask_MB, Laplace(1.0, 0.3), stream_of(1000)).flatten().numpy()
    gauss = perturb(zero_MBD, mask_MB, Gaussian(1.0, 0.3), stream_of(1000)).flatten().numpy()
    assert stats.kstest(laplace, stats.laplace(scale=0.3).cdf).pvalue > 1e-3
    assert stats.kstest(gauss, stats.norm(scale=0.3).cdf).pvalue > 1e-3
    assert stats.kstest(laplace, stats.laplace(scale=0.33).cdf).pvalue < 1e-3  # the test tells scales apart


def test_noise_is_finite_where_the_bits_are_extreme():
    class Bits:
        def __init__(self, value):
            self.value = value

        def bits(self, *shape):
            return torch.full(shape, self.value)

    ends = [standard_laplace(Bits(value), 1).item() for value in (0, -1, 2**63 - 1, -(2**63))]
    assert all(math.isfinite(end) and abs(end) <= 24 * math.log(2) + 1e-4 for end in ends)


def test_each_embedding_is_dropped_alone_with_the_given_rate():
    mask_MB = torch.ones(5000, 4, dtype=torch.bool)
    mask_MB[:, 3] = False
    kept_MB = keep(mask_MB, Laplace(1.0, 1.0, 0.2), stream_of(5000))
    assert not kept_MB[:, 3].any()
    patterns = torch.bincount((kept_MB[:, :3] * torch.tensor([1, 2, 4])).sum(1), minlength=8).numpy()
    expected = [0.8 ** bin(k).count("1") * 0.2 ** (3 - bin(k).count("1")) * 5000 for k in range(8)]
    assert stats.chisquare(patterns, expected).pvalue > 1e-3
    assert keep(mask_MB, Laplace(1.0, 1.0), stream_of(5000)) is mask_MB


def test_drop_and_noise_are_independent():
    """An embedding that is kept has noise like any other: the two streams differ."""
    mask_MB = torch.ones(20000, 1, dtype=torch.bool)
    mechanism = Laplace(1.0, 1.0, 0.5)
    noise = perturb(torch.zeros(20000, 1, 1), mask_MB, mechanism, stream_of(20000)).flatten().numpy()
    kept = keep(mask_MB, mechanism, stream_of(20000)).flatten().numpy()
    assert stats.ks_2samp(noise[kept], noise[~kept]).pvalue > 1e-3


@given(st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(allow_nan=True))
@settings(max_examples=60)
def test_mechanisms_are_sound_or_refused(clip, noise, drop):
    good = all(math.isfinite(x) and x > 0 for x in (clip, noise)) and 0 <= drop < 1
    for make in (Laplace, Gaussian):
        if good:
            assert make(clip, noise, drop).drop == drop
        else:
            with pytest.raises(SelfsameError, match=r"must be"):
                make(clip, noise, drop)


# The enclave draws its noise itself, in numpy. Same clip, same distribution, same rate of drops.


def enclave():
    return pytest.importorskip("selfsame.enclave.noise")


def twin(mechanism):
    kind, scale = ("laplace", mechanism.scale) if isinstance(mechanism, Laplace) else ("gaussian", mechanism.sigma)
    return enclave().Mechanism(kind, mechanism.drop, mechanism.clip, scale)


@pytest.mark.parametrize("mechanism", BOTH)
def test_the_enclave_clips_alike(mechanism):
    """Bits that are all set make a uniform number 1, and noise of that is none."""
    grad_MBD, _ = derivatives()
    there_MB = torch.ones(5, 4, dtype=torch.bool)
    here_MBD = clipped(grad_MBD, there_MB, mechanism).numpy()
    for grad_BD, here_BD in zip(grad_MBD.numpy(), here_MBD):
        sent_BD = enclave().noised(grad_BD, twin(mechanism), lambda count: b"\xff" * count)
        np.testing.assert_allclose(sent_BD, here_BD, atol=1e-6)  # its grid is 2^-20 of the scale


@pytest.mark.parametrize("mechanism", BOTH)
def test_the_enclave_adds_the_same_noise(mechanism):
    mask_MB = torch.ones(1000, 4, dtype=torch.bool)
    here = perturb(torch.zeros(1000, 4, 5), mask_MB, mechanism, stream_of(1000)).flatten().numpy()
    there = enclave().noised(np.zeros((4000, 5)), twin(mechanism), random.Random(0).randbytes).flatten()
    assert stats.ks_2samp(here, there).pvalue > 1e-3
    assert stats.ks_2samp(1.25 * here, there).pvalue < 1e-3


def test_the_enclave_drops_as_many():
    mask_MB = torch.ones(5000, 4, dtype=torch.bool)
    here = int(keep(mask_MB, BOTH[0], stream_of(5000)).sum())
    there = int(enclave().kept(20000, 0.3, random.Random(0).randbytes).sum())
    assert stats.fisher_exact([[here, 20000 - here], [there, 20000 - there]]).pvalue > 1e-3
