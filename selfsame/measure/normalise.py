"""Scores measured against what strangers would get: z-, t-, s- and adaptive s-normalisation, and cohorts of strangers.

A cohort is a table of embeddings that belong to nobody: public samples, or generated ones. NumPy alone, so that a
device can use it. Shapes: S samples, T templates, N members of the cohort, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]
Embed = Callable[[NDArray[np.generic]], ArrayLike]  # raw samples (S, *shape) -> embeddings (S, D)
Score = Callable[[NDArray[np.generic], NDArray[np.generic]], ArrayLike]  # (S, D) and (T, D) -> (S, T)

SOURCES = ("public", "noise", "directions")
_CHUNK = 256


@dataclass(frozen=True)
class Cohort:
    """Embeddings of strangers, and where they come from; a plain array and a word, for a file to carry.

    They serve as samples and as templates, so a method that brings samples to unit length must have done so.
    """

    emb_ND: NDArray[np.float32]
    source: str  # one of SOURCES

    def __post_init__(self) -> None:
        emb = np.asarray(self.emb_ND)
        if emb.ndim != 2 or len(emb) < 2 or not emb.shape[1] or emb.dtype.kind != "f":
            raise SelfsameError(
                f"cohort: expected floating-point embeddings (N, D) with N of 2 or more, got {emb.dtype} {emb.shape}"
            )
        if not np.isfinite(emb).all():
            raise SelfsameError("cohort: embeddings must be finite")
        if self.source not in SOURCES:
            raise SelfsameError(f"cohort: source must be one of {', '.join(SOURCES)}, got {self.source}")
        object.__setattr__(self, "emb_ND", np.ascontiguousarray(emb, dtype=np.float32))


def public_cohort(embed: Embed, raw_S: NDArray[np.generic]) -> Cohort:
    """The cohort of samples that anybody may have; they must be of none of the users."""
    return Cohort(_embedded(embed, raw_S), "public")


def noise_cohort(
    embed: Embed, shape: tuple[int, ...], count: int, seed: int, low: float, high: float, dtype: str
) -> Cohort:
    """The cohort of generated samples: see `noise_samples`."""
    return Cohort(_embedded(embed, noise_samples(shape, count, seed, low, high, dtype)), "noise")


def direction_cohort(width: int, count: int, seed: int) -> Cohort:
    """Random unit vectors, which no network has seen: weak, as real embeddings do not fill all directions."""
    if width < 1 or count < 2:
        raise SelfsameError(f"cohort: expected a width of 1 or more and 2 or more vectors, got {width} and {count}")
    emb = np.random.default_rng(seed).normal(size=(count, width))
    return Cohort((emb / np.linalg.norm(emb, axis=1, keepdims=True)).astype(np.float32), "directions")


def noise_samples(
    shape: tuple[int, ...], count: int, seed: int, low: float, high: float, dtype: str
) -> NDArray[np.generic]:
    """Raw samples (count, *shape) of noise over the whole range, whose amplitudes fall as one over the frequency.

    The first axis of a sample is its channels; along the others neighbours are alike, as in pictures and recordings.
    """
    if count < 2 or not shape or min(shape) < 1 or not low < high:
        raise SelfsameError(
            f"noise: expected 2 or more samples of a shape and low below high, got {count}, {shape}, {low}, {high}"
        )
    white = np.random.default_rng(seed).normal(size=(count, *shape))
    axes = tuple(range(2, white.ndim))
    if axes:
        square = sum(np.square(f) for f in np.meshgrid(*(np.fft.fftfreq(size) for size in shape[1:]), indexing="ij"))
        # The mean has frequency 0 and is weighted as the slowest wave.
        slowest = 1 / max(shape[1:])
        white = np.fft.ifftn(np.fft.fftn(white, axes=axes) / np.maximum(np.sqrt(square), slowest), axes=axes).real
    flat = white.reshape(count, -1)
    bottom, top = flat.min(1, keepdims=True), flat.max(1, keepdims=True)
    part = (flat - bottom) / np.where(top > bottom, top - bottom, 1)
    raw = (low + part * (high - low)).reshape(white.shape)
    return (raw.round() if np.dtype(dtype).kind in "iu" else raw).astype(dtype)


def z_norm(score_ST: ArrayLike, template_TN: ArrayLike) -> Floats:
    """Each template's scores by mean and deviation of the strangers' scores against it.

    For one template this is a shift and a scale: it changes no decision of a user's own threshold, but makes one
    threshold fit several users.
    """
    score, template = _table("scores", score_ST), _table("cohort scores of the templates", template_TN)
    _fits("templates", score.shape[1], template)
    return _standard(score, template, None, axis=1)


def t_norm(score_ST: ArrayLike, sample_SN: ArrayLike) -> Floats:
    """Each sample's scores by mean and deviation of its scores against the strangers."""
    score, sample = _table("scores", score_ST), _table("cohort scores of the samples", sample_SN)
    _fits("samples", score.shape[0], sample)
    return _standard(score, sample, None, axis=0)


def s_norm(score_ST: ArrayLike, sample_SN: ArrayLike, template_TN: ArrayLike) -> Floats:
    """The mean of z- and t-normalised scores."""
    return (z_norm(score_ST, template_TN) + t_norm(score_ST, sample_SN)) / 2


def as_norm(score_ST: ArrayLike, sample_SN: ArrayLike, template_TN: ArrayLike, top: int) -> Floats:
    """The s-norm by the `top` nearest strangers of each template and of each sample."""
    score, sample, template = (_table("scores", x) for x in (score_ST, sample_SN, template_TN))
    _fits("samples", score.shape[0], sample)
    _fits("templates", score.shape[1], template)
    if not 2 <= top <= min(sample.shape[1], template.shape[1]):
        raise SelfsameError(f"as-norm: top must be 2 to the {sample.shape[1]} members of the cohort, got {top}")
    return (_standard(score, template, top, axis=1) + _standard(score, sample, top, axis=0)) / 2


NORMS: dict[str, Callable[[ArrayLike, ArrayLike, ArrayLike, int], Floats]] = {
    "none": lambda score, sample, template, top: _table("scores", score),
    "z": lambda score, sample, template, top: z_norm(score, template),
    "t": lambda score, sample, template, top: t_norm(score, sample),
    "s": lambda score, sample, template, top: s_norm(score, sample, template),
    "as": as_norm,
}


def normalised(
    norm: str,
    score: Score,
    emb_SD: NDArray[np.generic],
    template_TD: NDArray[np.generic],
    cohort: Cohort,
    top: int = 50,
) -> Floats:
    """The scores (S, T) of samples against templates, normalised by a cohort; at most `top` members for as-norm."""
    if norm not in NORMS:
        raise SelfsameError(f"normalisation: expected one of {', '.join(NORMS)}, got {norm}")
    for what, emb in (("samples", emb_SD), ("templates", template_TD)):
        if emb.ndim != 2 or emb.shape[1] != cohort.emb_ND.shape[1]:
            raise SelfsameError(
                f"normalisation: {what} of shape {emb.shape} and a cohort of width {cohort.emb_ND.shape[1]} do not fit"
            )
    # The cohort stands on the sample's side of the template, and on the template's side of the sample.
    template_NT = np.asarray(score(cohort.emb_ND, template_TD))
    members = min(top, len(cohort.emb_ND))
    return NORMS[norm](score(emb_SD, template_TD), score(emb_SD, cohort.emb_ND), template_NT.T, members)


def _standard(score: Floats, cohort: Floats, top: int | None, axis: int) -> Floats:
    """Scores less the mean of their row or column's cohort scores, over its deviation."""
    if top is not None:
        cohort = np.partition(cohort, cohort.shape[1] - top, axis=1)[:, -top:]
    mean, deviation = cohort.mean(1), cohort.std(1)
    if not (cohort.max(1) > cohort.min(1)).all():
        raise SelfsameError("normalisation: all strangers score the same, give a cohort of different samples")
    return (score - np.expand_dims(mean, 1 - axis)) / np.expand_dims(deviation, 1 - axis)


def _fits(what: str, wanted: int, cohort: Floats) -> None:
    if len(cohort) != wanted or cohort.shape[1] < 2:
        raise SelfsameError(
            f"normalisation: expected scores of {wanted} {what} against 2 or more strangers, got {cohort.shape}"
        )


def _table(name: str, score: ArrayLike) -> Floats:
    table = np.asarray(score, dtype=np.float64)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise SelfsameError(f"normalisation: {name} must be finite numbers in two dimensions, got shape {table.shape}")
    return table


def _embedded(embed: Embed, raw_S: NDArray[np.generic]) -> NDArray[np.float32]:
    if len(raw_S) < 2:
        raise SelfsameError(f"cohort: expected 2 or more samples, got {len(raw_S)}")
    parts = (raw_S[begin : begin + _CHUNK] for begin in range(0, len(raw_S), _CHUNK))
    return np.concatenate([np.asarray(embed(part), dtype=np.float32) for part in parts])
