"""Pictures: every kind becomes bytes of one size, and what cannot be decoded gets one line."""

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from trees import picture, put

from selfsame.data.formats.pictures import decode_image
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_picture_of_the_right_size_is_taken_as_it_is(tmp_path):
    put(tmp_path / "a.png", 1, width=8, height=8)
    expected = np.asarray(picture(1, 8, 8)).transpose(2, 0, 1)
    assert np.array_equal(decode_image(tmp_path / "a.png", 8, False), expected)
    grey = decode_image(tmp_path / "a.png", 8, True)
    luma = expected.astype(float).transpose(1, 2, 0) @ [0.299, 0.587, 0.114]
    assert grey.shape == (1, 8, 8) and np.abs(grey[0] - luma).max() <= 1


def test_a_larger_one_is_averaged_not_sampled(tmp_path):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 254
    Image.fromarray(stripes).save(tmp_path / "a.png")
    assert np.abs(decode_image(tmp_path / "a.png", 8, True).astype(int) - 127).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_other_kinds_of_images(tmp_path, mode):
    name = "a.jpg" if mode in ("CMYK", "YCbCr") else "a.png"
    Image.new("RGB", (20, 10), (204, 204, 204)).convert(mode).save(tmp_path / name)
    for grey in (False, True):
        pixels = decode_image(tmp_path / name, 8, grey)
        assert pixels.dtype == np.uint8 and pixels.shape == (1 if grey else 3, 8, 8)
        assert mode == "1" or np.abs(pixels.astype(int) - 204).max() <= 3


def test_sixteen_bits_keep_their_range(tmp_path):
    Image.fromarray(np.full((8, 8), 51400, np.uint16)).save(tmp_path / "a.png")
    assert np.unique(decode_image(tmp_path / "a.png", 8, True)).tolist() == [200]


def test_a_camera_held_upright(tmp_path):
    half = Image.new("L", (8, 8), 0)
    half.paste(250, (0, 0, 4, 8))  # the left half is bright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: left becomes up
    half.save(tmp_path / "a.png", exif=exif)
    pixels = decode_image(tmp_path / "a.png", 8, True)[0]
    assert pixels[:4].min() == 250 and pixels[4:].max() == 0


def jpeg(seed=0):
    out = io.BytesIO()
    picture(seed, 40, 30).save(out, "JPEG")
    return out.getvalue()


def png(seed=0):
    out = io.BytesIO()
    picture(seed).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    "raw, line",
    [
        (b"", "empty file"),
        (b"GIF89a", "not an image"),
        (jpeg()[:-300], "cannot be decoded: .*truncated"),
        (png()[:80], "cannot be decoded"),
        (png().replace(b"IDAT", b"XDAT"), "not an image"),
    ],
)
def test_a_broken_image_gets_one_line(tmp_path, raw, line):
    (tmp_path / "a.png").write_bytes(raw)
    with pytest.raises(SelfsameError, match=line) as caught:
        decode_image(tmp_path / "a.png", 8, False)
    assert "\n" not in str(caught.value)


def test_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr("selfsame.data.formats.pictures._MOST_PIXELS", 100)
    put(tmp_path / "a.png", 1)
    with pytest.raises(SelfsameError, match="12x10 pixels are too many"):
        decode_image(tmp_path / "a.png", 8, False)


@FUZZ
@given(
    raw=st.sampled_from([jpeg(), png(), b"P5 2 2 255\n\0\1\2\3", b"BM"]),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 3000),
)
def test_damaged_images_are_decoded_or_get_one_line(tmp_path, raw, changes, cut):
    body = bytearray(raw[:cut])
    for at, byte in changes:
        if body:
            body[at % len(body)] = byte
    (tmp_path / "a.png").write_bytes(body)
    try:
        assert decode_image(tmp_path / "a.png", 8, False).shape == (3, 8, 8)
    except SelfsameError as error:
        assert "\n" not in str(error)
