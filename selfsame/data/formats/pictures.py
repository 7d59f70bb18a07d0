"""Pictures: JPEG, PNG, BMP, PPM and WebP files as bytes of one size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfsame.device.pictures import ENDINGS, FORMATS
from selfsame.errors import SelfsameError, one_line

__all__ = ["ENDINGS", "decode_image"]

_MOST_PIXELS = 100_000_000


def decode_image(path: Path, size: int, grey: bool) -> NDArray[np.uint8]:
    """An image file as (1 or 3, size, size) bytes, resized with antialiasing, whatever its shape."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # only those who read image files need it

    try:
        if path.stat().st_size == 0:
            raise SelfsameError("empty file")
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise SelfsameError(f"{image.width}x{image.height} pixels are too many")
            mode = "L" if grey else "RGB"
            image.draft(mode, (2 * size, 2 * size))  # a JPEG is decoded at a fraction of its size where that suffices
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits, which `convert` would cut off at 255
                upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
            plain = upright.convert(mode)
            if plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain)
    except SelfsameError:
        raise
    except UnidentifiedImageError:
        raise SelfsameError("not an image (JPEG, PNG, BMP, PPM or WebP)") from None
    except Exception as error:  # a damaged file makes the decoders raise anything
        raise SelfsameError(f"cannot be decoded: {one_line(error)}") from error
    return np.ascontiguousarray(pixels[None] if grey else pixels.transpose(2, 0, 1))
