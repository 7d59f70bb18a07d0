"""What a model file says of itself, and how embeddings are compared by it: nothing but numpy is needed.

Shapes: S samples, D dimensions.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.device.strangers import Strangers
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import parse_json

FORMAT = "selfsame-onnx-1"
PLACES = ("unit", "as-is")
SCORES = ("cosine", "distance", "squared-distance")
VARIANTS = ("float32", "int8")
DTYPES = {  # of raw samples, and the range they may have
    "uint8": (0.0, 255.0),
    "int16": (-32768.0, 32767.0),
    "float32": (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
}

_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_TEXT = 2**22
_MOST_COLUMNS = 2**14
_MOST_POPULATIONS = 64
_MOST_NUMBERS = 2**28  # in one sample
_MOST_AXES = 6
_MOST_WIDTH = 2**20
_MOST_RATE = 384_000
_TINY = 1e-12  # a vector shorter than this is not brought to unit length

Floats = NDArray[np.floating[Any]]
Raw = NDArray[Any]  # samples as they are recorded


@dataclass(frozen=True)
class Card:
    """A model file's description of itself; every field is checked."""

    format: str
    version: str  # of selfsame that wrote it
    method: str
    data: str  # the data set it was trained on
    shape: tuple[int, ...]  # of one raw sample; -1 as the last: any length
    dtype: str  # of raw samples
    low: float  # the accepted range of raw values
    high: float
    width: int  # of the embedding
    place: str  # "unit": embeddings are brought to unit length before they are averaged or compared; or "as-is"
    score: str  # "cosine", "distance": minus the Euclidean distance, or "squared-distance": minus its square
    opset: int  # 0: not an ONNX graph
    digest: str  # sha256 of the file with zeros in this place
    variant: str
    rate: int = 0  # samples a second of a recording; 0: not a recording
    columns: tuple[str, ...] = ()  # of a table, in the order of training; none: not a table, or not known
    cohort: tuple[Strangers, ...] = ()  # what strangers score

    def __post_init__(self) -> None:
        _need("format", self.format == FORMAT, f"must be {FORMAT!r}", self.format)
        for name in ("version", "method", "data"):
            text = getattr(self, name)
            _need(name, 0 < len(text) <= 200 and text.isprintable(), "must be a short text", text)
        for name, words in (("dtype", DTYPES), ("place", PLACES), ("score", SCORES), ("variant", VARIANTS)):
            word = getattr(self, name)
            _need(name, word in words, f"must be one of {', '.join(words)}", word)
        for name, first, last in (("width", 1, _MOST_WIDTH), ("opset", 0, 1000), ("rate", 0, _MOST_RATE)):
            number = getattr(self, name)
            _need(name, first <= number <= last, f"must be a whole number from {first} to {last}", number)
        fits = 0 < len(self.shape) <= _MOST_AXES and min((*self.shape[:-1], abs(self.shape[-1]))) > 0
        fits = fits and self.shape[-1] >= -1 and abs(math.prod(self.shape)) <= _MOST_NUMBERS
        _need("shape", fits, f"must be 1 to {_MOST_AXES} axes of 1 to {_MOST_NUMBERS} numbers", self.shape)
        least, most = DTYPES[self.dtype]
        in_range = least <= self.low < self.high <= most
        _need("low", in_range, f"and high must be two numbers from {least:g} to {most:g}", (self.low, self.high))
        named = not self.columns or (
            len(self.columns) == math.prod(self.shape) <= _MOST_COLUMNS
            and len(set(self.columns)) == len(self.columns)
            and all(len(name) <= 200 for name in self.columns)
        )
        _need("columns", named, f"must be {math.prod(self.shape)} different short names", self.columns)
        _need("cohort", len(self.cohort) <= _MOST_POPULATIONS, "has too many populations", len(self.cohort))
        met = self.score != "cosine" or self.place == "unit"
        _need("place", met, "must be 'unit' where score is 'cosine'", self.place)
        _need("digest", bool(_DIGEST.fullmatch(self.digest)), "must be 64 hexadecimal digits", self.digest)

    def to_json(self) -> str:
        """One line of JSON; `from_json` gives the same card back."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Card:
        """The card that the text holds, or one clear line."""
        if len(text) > _MOST_TEXT:
            raise SelfsameError(f"card: longer than {_MOST_TEXT} characters")
        try:
            given = parse_json(text)
        except (ValueError, RecursionError):
            raise SelfsameError("card: not readable as JSON") from None
        return read_fields("card", given, Card)


def _need(name: str, met: bool, expected: str, got: object) -> None:
    if not met:
        raise SelfsameError(f"card: {name} {expected}, got {repr(got)[:60]}")


def placed(card: Card, emb: Floats) -> Floats:
    """Embeddings (..., D) where they are compared: at unit length, a zero vector at zero, or as they are."""
    if card.place == "as-is":
        return emb
    return emb / np.maximum(np.linalg.norm(emb, axis=-1, keepdims=True), _TINY).astype(emb.dtype)


def template(card: Card, emb_SD: Floats) -> Floats:
    """The vector (D,) that stands for a person, from embeddings of their samples."""
    mean_D: Floats = placed(card, emb_SD).mean(0)
    return mean_D


def score(card: Card, emb_SD: Floats, template_D: Floats) -> Floats:
    """How well each sample fits the template, larger is closer: shape (S,)."""
    if card.score == "cosine":
        fit_S: Floats = placed(card, emb_SD) @ placed(card, template_D)
        return fit_S
    square_S: Floats = np.square(placed(card, emb_SD) - template_D).sum(-1)
    return -square_S if card.score == "squared-distance" else -np.sqrt(square_S)
