"""Embeddings from a model file, by onnxruntime alone.

Shapes: S samples, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from selfsame.device.card import Card, Raw
from selfsame.device.model_file import INPUT, OUTPUT, read_card
from selfsame.device.runtime import onnxruntime, session_options
from selfsame.errors import SelfsameError, one_line

Emb = NDArray[np.float32]

_ONNX_TYPES = {"uint8": "tensor(uint8)", "int16": "tensor(int16)", "float32": "tensor(float)"}
_TOGETHER = 2**18  # numbers of raw samples that are embedded at a time


class Embedder(Protocol):
    """Raw samples in, embeddings out, and a card that says what fits in and how to compare what comes out."""

    @property
    def card(self) -> Card: ...

    def embed(self, raw: Raw) -> Emb:
        """Embeddings (S, D) of raw samples (S, *shape)."""
        ...


class OnnxEmbedder:
    """A model file, on one thread; one whose digest is not `digest`, where that is given, is refused."""

    def __init__(self, data: bytes, name: str, digest: str | None = None) -> None:
        self.card = read_card(data, name)
        check_digest(self.card, name, digest)  # before any library sees the file
        self._name = name
        ort, options = onnxruntime(), session_options()
        try:
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a kind for each of its codes, without a common one
            raise SelfsameError(f"{name}: onnxruntime cannot load it: {one_line(error)}") from None
        self._check_ends()

    def _check_ends(self) -> None:
        """The input and the output are what the card says."""
        card = self.card
        (into,), (out,) = self._session.get_inputs(), self._session.get_outputs()
        shape = tuple(size if isinstance(size, int) else -1 for size in into.shape)
        fits = shape == (-1, *card.shape) and into.type == _ONNX_TYPES[card.dtype] and into.name == INPUT
        if not fits or out.name != OUTPUT or out.type != "tensor(float)" or out.shape[1:] != [card.width]:
            raise SelfsameError(f"{self._name}: its input or output is not what its card says")

    def embed(self, raw: Raw) -> Emb:
        """Embeddings (S, D) of raw samples (S, *shape)."""
        return in_parts(self.card, raw, self._run)

    def _run(self, raw: Raw) -> Emb:
        try:
            out: Emb = self._session.run([OUTPUT], {INPUT: raw})[0]
        except Exception as error:
            raise SelfsameError(f"{self._name}: fails on these samples: {one_line(error)}") from None
        return out


def check_digest(card: Card, name: str, digest: str | None) -> None:
    """Refuse a model that is not the one asked for."""
    if digest is not None and card.digest != digest.strip().lower():
        raise SelfsameError(f"{name}: another model than the one asked for, its digest is {card.digest}")


def in_parts(card: Card, raw: Raw, run: Callable[[Raw], Emb]) -> Emb:
    """What `run` makes of checked samples, some at a time; its answer is checked too."""
    raw = _checked(card, raw)
    size = max(1, _TOGETHER // max(1, raw[0].size))
    parts = [run(np.ascontiguousarray(raw[begin : begin + size])) for begin in range(0, len(raw), size)]
    out = np.concatenate(parts).astype(np.float32, copy=False)
    if out.shape != (len(raw), card.width) or not np.isfinite(out).all():
        raise SelfsameError("the network's answer to these samples is not finite")
    return out


def _checked(card: Card, raw: Raw) -> Raw:
    """The samples, if they are what the card says."""
    shown = ", ".join("any" if size < 0 else str(size) for size in card.shape)
    if not isinstance(raw, np.ndarray) or raw.ndim != len(card.shape) + 1 or not len(raw):
        got = raw.shape if isinstance(raw, np.ndarray) else type(raw).__name__
        raise SelfsameError(f"samples must be an array of shape (number, {shown}), got {got}")
    if any(want not in (-1, got) for want, got in zip(card.shape, raw.shape[1:], strict=True)) or 0 in raw.shape:
        raise SelfsameError(f"samples must be of shape ({shown}), got {raw.shape[1:]}")
    if raw.dtype != card.dtype:
        raise SelfsameError(f"samples must be {card.dtype}, got {raw.dtype}")
    if not (card.low <= float(raw.min()) and float(raw.max()) <= card.high):  # also where either is NaN
        raise SelfsameError(f"samples must be numbers from {card.low:g} to {card.high:g}")
    return raw
