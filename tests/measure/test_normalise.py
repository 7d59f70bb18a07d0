"""Score normalisation against plain loops, and cohorts that belong to nobody."""

import math

import numpy as np
import pytest

from selfsame.errors import SelfsameError
from selfsame.measure.normalise import (
    NORMS,
    Cohort,
    as_norm,
    direction_cohort,
    noise_cohort,
    noise_samples,
    normalised,
    public_cohort,
    s_norm,
    t_norm,
    z_norm,
)


def moments(values):
    """(mean, deviation) by plain sums."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))


def by_loops(norm, score, sample, template, top):
    out = np.empty(score.shape)
    for s in range(score.shape[0]):
        for t in range(score.shape[1]):
            row, column = sorted(sample[s]), sorted(template[t])
            if norm == "as":
                row, column = row[-top:], column[-top:]
            (mean_t, dev_t), (mean_z, dev_z) = moments(row), moments(column)
            z, by_t = (score[s, t] - mean_z) / dev_z, (score[s, t] - mean_t) / dev_t
            out[s, t] = {"none": score[s, t], "z": z, "t": by_t, "s": (z + by_t) / 2, "as": (z + by_t) / 2}[norm]
    return out


def tables(seed=0, samples=5, templates=3, members=11):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(samples, templates)),
        rng.normal(2, 3, (samples, members)),
        rng.normal(-1, 0.5, (templates, members)),
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("top", [2, 4, 11])
def test_norms_by_plain_loops(norm, top):
    score, sample, template = tables()
    np.testing.assert_allclose(
        NORMS[norm](score, sample, template, top), by_loops(norm, score, sample, template, top), rtol=1e-12, atol=1e-12
    )


def test_the_adaptive_norm_by_everybody_is_the_plain_one():
    score, sample, template = tables(1)
    np.testing.assert_allclose(as_norm(score, sample, template, 11), s_norm(score, sample, template), rtol=1e-12)
    assert not np.allclose(as_norm(score, sample, template, 3), s_norm(score, sample, template))


def test_scale_and_shift_do_not_matter():
    score, sample, template = tables(2)
    for norm, call in NORMS.items():
        if norm != "none":
            np.testing.assert_allclose(
                call(3 * score + 1, 3 * sample + 1, 3 * template + 1, 5), call(score, sample, template, 5), rtol=1e-9
            )


def test_z_norm_keeps_the_order_within_a_user_and_t_norm_within_a_sample():
    score, sample, template = tables(3)
    np.testing.assert_array_equal(z_norm(score, template).argsort(0), score.argsort(0))
    np.testing.assert_array_equal(t_norm(score, sample).argsort(1), score.argsort(1))


def cosine(emb_SD, template_TD):
    emb_SD, template_TD = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (emb_SD, template_TD))
    return emb_SD @ template_TD.T


@pytest.mark.parametrize("norm", NORMS)
def test_embeddings_against_a_cohort(norm):
    rng = np.random.default_rng(4)
    emb, template = rng.normal(size=(6, 8)), rng.normal(size=(2, 8))
    cohort = Cohort(rng.normal(size=(9, 8)).astype(np.float32), "public")
    found = normalised(norm, cosine, emb, template, cohort, top=4)
    member = cohort.emb_ND.astype(np.float64)

    def one(a, b):
        return math.fsum(x * y for x, y in zip(a, b)) / math.sqrt(
            math.fsum(x * x for x in a) * math.fsum(y * y for y in b)
        )

    score = np.array([[one(e, t) for t in template] for e in emb])
    sample = np.array([[one(e, c) for c in member] for e in emb])
    against = np.array([[one(c, t) for c in member] for t in template])
    np.testing.assert_allclose(found, by_loops(norm, score, sample, against, 4), rtol=1e-6, atol=1e-6)
    assert normalised(norm, cosine, emb, template, cohort, top=500).shape == (6, 2)


def test_one_threshold_fits_users_of_different_scales_after_z_norm():
    """Two users whose scores have the same shape but other places and widths."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=(400, 1))
    strangers = rng.normal(-3, 1, (2, 300))
    score = np.concatenate([base, 5 * base + 20], 1)
    template = np.stack([strangers[0], 5 * strangers[0] + 20])
    found = z_norm(score, template)
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-9)


def test_cohorts_of_samples_and_of_noise():
    seen = []

    def embed(raw):
        seen.append(raw)
        return raw.reshape(len(raw), -1)[:, :3].astype(np.float64) + 0.5

    raw = np.arange(600 * 4, dtype=np.int16).reshape(600, 1, 4)
    cohort = public_cohort(embed, raw)
    assert (cohort.source, cohort.emb_ND.dtype, cohort.emb_ND.shape) == ("public", np.float32, (600, 3))
    np.testing.assert_array_equal(cohort.emb_ND, raw[:, 0, :3] + 0.5)
    assert max(map(len, seen)) <= 256
    seen.clear()
    noise = noise_cohort(embed, (1, 2, 2), 7, 3, 0, 255, "uint8")
    assert (noise.source, noise.emb_ND.shape, seen[0].dtype) == ("noise", (7, 3), np.uint8)
    np.testing.assert_array_equal(seen[0], noise_samples((1, 2, 2), 7, 3, 0, 255, "uint8"))


@pytest.mark.parametrize(("dtype", "low", "high"), [("uint8", 0, 255), ("int16", -32768, 32767), ("float32", -1, 1)])
@pytest.mark.parametrize("shape", [(1, 16, 12), (3, 64), (5,)])
def test_noise_fills_the_range_and_is_smooth(shape, dtype, low, high):
    raw = noise_samples(shape, 20, 0, low, high, dtype)
    assert (raw.shape, raw.dtype) == ((20, *shape), np.dtype(dtype))
    flat = raw.reshape(20, -1).astype(np.float64)
    np.testing.assert_allclose(flat.min(1), low, atol=1e-6)
    np.testing.assert_allclose(flat.max(1), high, atol=1e-6)
    np.testing.assert_array_equal(raw, noise_samples(shape, 20, 0, low, high, dtype))
    assert not np.array_equal(raw, noise_samples(shape, 20, 1, low, high, dtype))
    if len(shape) > 1:
        step = np.diff(raw.astype(np.float64), axis=-1)
        assert step.std() < raw.astype(np.float64).std()  # of white noise it would be 1.4 times as much


def test_amplitudes_fall_as_one_over_the_frequency():
    """Of one wave: twice the frequency, half the amplitude, over many samples."""
    raw = noise_samples((1, 256), 4000, 0, 0.0, 1.0, "float64")[:, 0]
    raw = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    size = np.sqrt(np.square(np.abs(np.fft.rfft(raw))).mean(0))
    for frequency in (4, 8, 16, 32):
        assert size[frequency] / size[2 * frequency] == pytest.approx(2, rel=0.05)


def test_directions_are_unit_vectors_all_around():
    cohort = direction_cohort(16, 4000, 1)
    np.testing.assert_allclose(np.linalg.norm(cohort.emb_ND, axis=1), 1, rtol=1e-6)
    assert np.abs(cohort.emb_ND.mean(0)).max() < 0.03
    np.testing.assert_array_equal(cohort.emb_ND, direction_cohort(16, 4000, 1).emb_ND)


@pytest.mark.parametrize(
    "emb",
    [np.zeros((1, 4), np.float32), np.zeros(4, np.float32), np.zeros((3, 0), np.float32), np.full((3, 2), np.nan),
     np.zeros((3, 4), np.int64)],
)  # fmt: skip
def test_what_is_no_cohort_is_refused(emb):
    with pytest.raises(SelfsameError, match="cohort"):
        Cohort(emb, "public")


def test_bad_input_is_refused():
    score, sample, template = tables()
    cohort = direction_cohort(8, 5, 0)
    emb = np.ones((2, 8))
    for call, line in (
        (lambda: Cohort(emb, "elsewhere"), "source"),
        (lambda: z_norm(score, template[:2]), "3 templates"),
        (lambda: t_norm(score, sample[:2]), "5 samples"),
        (lambda: t_norm(score, sample[:, :1]), "2 or more strangers"),
        (lambda: z_norm(score, np.ones((3, 9))), "all strangers score the same"),
        (lambda: z_norm(score * np.nan, template), "finite"),
        (lambda: z_norm(score[0], template), "two dimensions"),
        (lambda: as_norm(score, sample, template, 1), "top must be 2 to the 11"),
        (lambda: as_norm(score, sample, template, 12), "top must be 2 to the 11"),
        (lambda: normalised("nosuch", cosine, emb, emb, cohort), "none, z, t, s, as"),
        (lambda: normalised("z", cosine, emb[:, :3], emb, cohort), "width 8"),
        (lambda: normalised("z", cosine, emb, emb[0], cohort), "templates of shape"),
        (lambda: public_cohort(lambda raw: raw, emb[:1]), "2 or more samples"),
        (lambda: direction_cohort(0, 5, 0), "width"),
        (lambda: noise_samples((1, 4), 1, 0, 0, 1, "float32"), "2 or more samples"),
        (lambda: noise_samples((1, 4), 3, 0, 1, 1, "float32"), "low below high"),
    ):
        with pytest.raises(SelfsameError, match=line):
            call()
