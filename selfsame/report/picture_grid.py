"""Originals beside what was found of them, a row for each attack, as the paper's Table 2 shows them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pictures = NDArray[np.uint8]  # (G, C, H, W), in bytes
_SIDE, _GAP, _LINE, _LETTER = 64, 4, 14, 7  # pixels of the drawing


def read_pictures(file: Path) -> tuple[Pictures, Pictures] | None:
    """(originals, what was found of them) of a case; None where they are not there, or damaged."""
    try:
        both = np.load(file, allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None
    sound = both.dtype == np.uint8 and both.ndim == 5 and both.shape[0] == 2 and both.shape[2] in (1, 3) and both.size
    return (both[0], both[1]) if sound else None


def drawn_grid(rows: Mapping[str, Sequence[Pictures | None]], heads: Sequence[str]) -> bytes:
    """A PNG: a row for each label, and in it pictures side by side below each head; None where there are none."""
    shapes = [some.shape for row in rows.values() for some in row if some is not None]
    most = max(shape[0] for shape in shapes)
    left = _GAP + _LETTER * max(map(len, rows))
    part = most * (_SIDE + _GAP) + 3 * _GAP
    size = left + len(heads) * part, _LINE + 2 * _GAP + len(rows) * (_SIDE + _GAP)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for place, head in enumerate(heads):
        pen.text((left + place * part, _GAP), head, "black", font)
    for number, (label, row) in enumerate(rows.items()):
        top = _LINE + 2 * _GAP + number * (_SIDE + _GAP)
        pen.text((_GAP, top + (_SIDE - _LINE) // 2), label, "black", font)
        for place, some in enumerate(row):
            for column, one in enumerate([] if some is None else some):
                sheet.paste(_square(one), (left + place * part + column * (_SIDE + _GAP), top))
    data = io.BytesIO()
    sheet.save(data, "PNG", optimize=True)
    return data.getvalue()


def _square(one: Pictures) -> Image.Image:
    """A picture (C, H, W) in the size of the drawing."""
    colours = np.repeat(one, 3, 0) if len(one) == 1 else one
    return Image.fromarray(colours.transpose(1, 2, 0)).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
