"""Picture files decoded: upright, in the channels and the size that are wanted, within limits. Needs Pillow alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError, one_line

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")
_MOST_PIXELS = 100_000_000


def decode_picture(
    path: Path, channels: int, size: tuple[int, int], formats: tuple[str, ...], *, resize: bool, reduced: bool = False
) -> NDArray[np.uint8]:
    """A picture as bytes of shape (1 or 3, height, width); what is wrong with it is said without the file's name.

    One that is not of `size`, (height, width), is resized or refused. With `reduced` a JPEG is decoded at a fraction of
    its size if that suffices for training, which changes its bytes.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # only those who read pictures need it

    height, width = size
    mode = "L" if channels == 1 else "RGB"
    try:
        if path.stat().st_size == 0:
            raise SelfsameError("empty file")
        with Image.open(path, formats=formats) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise SelfsameError(f"{image.width}x{image.height} pixels are too many")
            if reduced:
                image.draft(mode, (2 * width, 2 * height))
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits, which `convert` would cut off at 255
                upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
            plain = upright.convert(mode)
            if plain.size != (width, height):
                if not resize:
                    found = f"{plain.width}x{plain.height}"
                    raise SelfsameError(f"{found} pixels, the model takes {width}x{height}; --resize makes it fit")
                plain = plain.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain)
    except SelfsameError:
        raise
    except UnidentifiedImageError:
        raise SelfsameError(f"not an image ({', '.join(formats[:-1])} or {formats[-1]})") from None
    except Exception as error:  # a damaged file makes the decoders raise anything
        raise SelfsameError(f"cannot be decoded: {one_line(error, path)}") from error
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))
