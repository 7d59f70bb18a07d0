"""Samples from files: what fits the card comes out as it is, anything else gets one line that names the file."""

import io
import sys
import wave
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from selfsame.device.card import DTYPES, FORMAT, Card
from selfsame.device.samples import read_samples
from selfsame.errors import SelfsameError


def card(shape=(1, 4, 5), dtype="uint8"):
    return Card(
        FORMAT, "0.1", "fedhide", "digits", shape, dtype, *DTYPES[dtype], 8, "unit", "cosine", 0, "0" * 64, "float32"
    )


GREY, COLOUR, TABLE = card(), card((3, 4, 5)), card((6,), "float32")
SOUND, ANY_LENGTH = card((1, 1000), "int16"), card((1, -1), "int16")


def refused(path, wanted, message, **more):
    with pytest.raises(SelfsameError, match=message) as fault:
        read_samples([path], wanted, **more)
    assert str(path) in str(fault.value) and "\n" not in str(fault.value)


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_wav(path, pcm, rate=8000, channels=1, width=2):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return path


def tone(number):
    return (1000 * np.sin(np.arange(number) / 3)).astype("<i2")


# ---- images


def test_images_in_the_channels_that_the_model_takes(tmp_path):
    grey, colour = pixels(4, 5), pixels(4, 5, 3, seed=1)
    Image.fromarray(grey).save(tmp_path / "a.png")
    Image.fromarray(colour).save(tmp_path / "b.PNG")
    found = read_samples([tmp_path / "a.png"], GREY)
    assert found[0].dtype == np.uint8 and found[0].tolist() == grey[None].tolist()
    assert found[0].flags.writeable and found[0].flags.c_contiguous
    assert read_samples([tmp_path / "b.PNG"], COLOUR)[0].tolist() == colour.transpose(2, 0, 1).tolist()
    assert read_samples([tmp_path / "a.png"], COLOUR)[0].tolist() == [grey.tolist()] * 3
    luma = np.asarray(Image.fromarray(colour).convert("L"))
    assert read_samples([tmp_path / "b.PNG"], GREY)[0].tolist() == luma[None].tolist()


def test_sixteen_bits_keep_their_upper_ones(tmp_path):
    deep = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert read_samples([tmp_path / "a.png"], GREY)[0][0].tolist() == (deep >> 8).tolist()


def test_another_size_only_when_asked(tmp_path):
    Image.fromarray(pixels(8, 10)).save(tmp_path / "a.png")
    refused(tmp_path / "a.png", GREY, "10x8 pixels, the model takes 5x4; --resize")
    want = np.asarray(Image.open(tmp_path / "a.png").resize((5, 4), Image.Resampling.BILINEAR))
    assert read_samples([tmp_path / "a.png"], GREY, resize=True)[0][0].tolist() == want.tolist()


def test_a_photo_is_turned_upright(tmp_path):
    image = Image.fromarray(pixels(5, 4))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "a.png", exif=exif)
    assert read_samples([tmp_path / "a.png"], GREY)[0].shape == (1, 4, 5)


def test_what_is_no_image(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"junk")
    refused(path, GREY, r"not an image \(JPEG, PNG, BMP, PPM or WEBP\)")
    path.write_bytes(b"")
    refused(path, GREY, "empty file")
    Image.fromarray(pixels(4, 5)).save(tmp_path / "b.png")
    path.write_bytes((tmp_path / "b.png").read_bytes()[:60])
    refused(path, GREY, "cannot be decoded")
    Image.fromarray(pixels(4, 5)).save(path, format="GIF")
    refused(path, GREY, r"not an image \(JPEG, PNG, BMP, PPM or WEBP\)")
    refused(tmp_path / "b.png", TABLE, "an image, the model takes float32 of shape 6")
    refused(tmp_path / "b.png", SOUND, "an image, the model takes int16")


# ---- arrays


def test_arrays_of_one_and_of_several(tmp_path):
    many = pixels(3, 1, 4, 5)
    np.save(tmp_path / "a.npy", many)
    np.save(tmp_path / "b.npy", many[1].astype(np.int64))
    assert [x.tolist() for x in read_samples([tmp_path / "a.npy"], GREY)] == many.tolist()
    one = read_samples([tmp_path / "b.npy"], GREY)
    assert one[0].dtype == np.uint8 and one[0].tolist() == many[1].tolist()
    np.save(tmp_path / "c.npy", np.arange(6))
    assert read_samples([tmp_path / "c.npy"], TABLE)[0].dtype == np.float32


@pytest.mark.parametrize(
    ("array", "wanted", "message"),
    [
        (np.zeros((4, 5), np.uint8), GREY, "shape 4x5, the model takes 1x4x5"),
        (np.zeros((0, 1, 4, 5), np.uint8), GREY, "holds no sample"),
        (np.zeros((2, 2, 1, 4, 5), np.uint8), GREY, "the model takes 1x4x5"),
        (np.uint8(3), GREY, "the model takes"),
        (np.zeros((1, 4, 5)), GREY, "float64, the model takes uint8"),
        (np.zeros((1, 4, 5), bool), GREY, "bool, the model takes uint8"),
        (np.full((1, 4, 5), 256), GREY, "values from 256 to 256, the model takes 0 to 255"),
        (np.full((1, 4, 5), -1), GREY, "values from -1"),
        (np.full(6, np.nan), TABLE, "not finite"),
        (np.array([1, 2, 3, 4, 5, np.inf]), TABLE, "not finite"),
        (np.full(6, 1e300), TABLE, "values from 1e"),
        (np.full(6, 1j), TABLE, "complex128"),
        (np.array(["a"] * 6), TABLE, "<U1"),
        (np.zeros((1, 0), np.int16), ANY_LENGTH, "shape 1x0, the model takes 1xany"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, array, wanted, message):
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path / "a.npy", wanted, message)


def test_no_pickles_and_no_archives(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    refused(tmp_path / "a.npy", TABLE, "not an array file")
    with open(tmp_path / "b.npy", "wb") as file:
        np.savez(file, x=np.zeros(6))
    refused(tmp_path / "b.npy", TABLE, "archive")


def test_a_header_that_promises_too_much(tmp_path):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 6)})
    (tmp_path / "a.npy").write_bytes(out.getvalue() + bytes(24))
    refused(tmp_path / "a.npy", TABLE, "not an array file")


# ---- recordings


def test_recordings_of_a_fixed_length(tmp_path):
    write_wav(tmp_path / "a.wav", tone(1500))
    assert read_samples([tmp_path / "a.wav"], SOUND)[0].tolist() == [tone(1500)[250:1250].tolist()]
    write_wav(tmp_path / "b.wav", tone(900))
    assert read_samples([tmp_path / "b.wav"], SOUND)[0][0].tolist() == [*tone(900).tolist(), *tone(100).tolist()]


def test_recordings_of_any_length(tmp_path):
    for number in (900, 1500):
        write_wav(tmp_path / f"{number}.wav", tone(number))
    assert [x.shape for x in read_samples([tmp_path], ANY_LENGTH)] == [(1, 1500), (1, 900)]


def test_another_rate_is_refused(tmp_path):
    write_wav(tmp_path / "a.wav", tone(2000), rate=16000)
    timed = SimpleNamespace(**{**vars(SOUND), "rate": 8000})
    refused(tmp_path / "a.wav", timed, "16000 samples a second, the model takes 8000")
    timed.rate = 16000
    assert len(read_samples([tmp_path / "a.wav"], timed)) == 1


def test_recordings_that_do_not_fit(tmp_path):
    path = tmp_path / "a.wav"
    refused(write_wav(path, tone(2000), channels=2), SOUND, "2 channels of 16 bits")
    refused(write_wav(path, pixels(2000), width=1), SOUND, "1 channels of 8 bits")
    refused(write_wav(path, tone(700)), SOUND, "0.0875 s of audio")
    refused(write_wav(path, np.zeros(1000, "<i2")), SOUND, "silent")
    refused(write_wav(path, tone(1000)), GREY, "a recording, the model takes uint8")
    good = path.read_bytes()
    path.write_bytes(good[:500])
    refused(path, SOUND, "truncated")
    path.write_bytes(good[:20])
    refused(path, SOUND, "not a PCM wav file")


def test_flac_as_wav(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(1500), 8000, subtype="PCM_16")
    write_wav(tmp_path / "a.wav", tone(1500))
    for wanted in (SOUND, ANY_LENGTH):
        flac, wav = (read_samples([tmp_path / name], wanted)[0] for name in ("a.flac", "a.wav"))
        assert flac.dtype == np.int16 and np.array_equal(flac, wav)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(SelfsameError, match=r"a\.flac"):
        read_samples([path], SOUND)
    soundfile.write(path, np.stack([tone(1500)] * 2, 1), 8000, subtype="PCM_16")
    refused(path, SOUND, "2 channels of PCM_16")
    path.write_bytes(b"fLaC, and nothing more")
    refused(path, SOUND, "not a FLAC file")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SelfsameError, match="soundfile"):
        read_samples([path], SOUND)


# ---- tables


def test_rows_of_a_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n\n-1e2,.5,0,0,0,7\n")
    assert [x.tolist() for x in read_samples([path], TABLE)] == [[1, 2, 3, 4, 5, 6], [-100, 0.5, 0, 0, 0, 7]]
    path.write_text("\ufeff1,2,3,4,5,6")
    assert read_samples([path], card((2, 3), "float32"))[0].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c,d,e,f\n", "no row of numbers"),
        ("1,2,3,4,5\n", "line 1: 5 cells, the model takes 6"),
        ("1,2,3,4,5,6\n1,2,3,4,5,x\n", "line 2: cell 6 is not a finite number"),
        ("1,2,nan,4,5,6\n", "line 1: cell 3 is not"),
        ("1,2,3,4,5,\n", "cell 6 is not"),
        ("1,2,3,4,5,1e39\n", "values from 1 to 1e"),
        ('1,"2,3,4,5,6\n', "not CSV"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    refused(tmp_path / "a.csv", TABLE, message)


def test_no_private_value_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,3,4,5,secret\n")
    with pytest.raises(SelfsameError) as fault:
        read_samples([tmp_path / "a.csv"], TABLE)
    assert "secret" not in str(fault.value)


def test_a_table_for_a_model_of_images(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    refused(tmp_path / "a.csv", GREY, "a table, the model takes uint8")


# ---- folders


def test_a_folder_by_name_without_hidden_files(tmp_path):
    for number, name in enumerate(("b.npy", "a.npy", ".hidden.txt")):
        with open(tmp_path / name, "wb") as file:
            np.save(file, np.full((1, 4, 5), number, np.uint8))
    assert [int(x.max()) for x in read_samples([tmp_path], GREY)] == [1, 0]
    assert len(read_samples([tmp_path, tmp_path / "a.npy"], GREY)) == 3


def test_folders_and_names_that_do_not_fit(tmp_path):
    refused(tmp_path, GREY, "no files")
    refused(tmp_path / "nowhere.png", GREY, "no such file")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", GREY, "not a sample by its name; expected .jpg")
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "deeper").mkdir()
    with pytest.raises(SelfsameError, match="deeper: expected a file"):
        read_samples([tmp_path], GREY)
    with pytest.raises(SelfsameError, match="at least one"):
        read_samples([], GREY)


# ---- anything


def _file(kind, folder):
    if kind == "png":
        Image.fromarray(pixels(4, 5)).save(folder / "good.png")
    elif kind == "npy":
        np.save(folder / "good.npy", pixels(1, 4, 5))
    elif kind == "wav":
        write_wav(folder / "good.wav", tone(1000))
    else:
        (folder / "good.csv").write_text("1,2,3,4,5,6\n")
    return (folder / f"good.{kind}").read_bytes()


@pytest.mark.parametrize(("kind", "wanted"), [("png", GREY), ("npy", GREY), ("wav", SOUND), ("csv", TABLE)])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, kind, wanted, data):
    raw = bytearray(_file(kind, tmp_path))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw)))
        raw[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = tmp_path / f"bad.{kind}"
    path.write_bytes(raw)
    try:
        found = read_samples([path], wanted)
    except SelfsameError as fault:
        assert "\n" not in str(fault)
    else:
        assert all(x.shape == wanted.shape and x.dtype == wanted.dtype for x in found)


@pytest.mark.parametrize("ending", ["png", "bmp", "pgm", "ppm", "webp"])
def test_every_kind_of_picture_that_training_reads(tmp_path, ending):
    """A network trained on them refused these files."""
    from selfsame.data.formats.pictures import ENDINGS, decode_image

    grey = pixels(8, 8)
    Image.fromarray(grey).convert("RGB" if ending in ("ppm", "webp") else "L").save(
        tmp_path / f"a.{ending}", **({"lossless": True} if ending == "webp" else {})
    )
    (found,) = read_samples([tmp_path / f"a.{ending}"], card((1, 8, 8)))
    assert found.tolist() == decode_image(tmp_path / f"a.{ending}", 8, True).tolist() == [grey.tolist()]
    assert f".{ending}" in ENDINGS


NAMED = Card(
    FORMAT, "0.1", "fedhide", "t", (3,), "float32", *DTYPES["float32"], 8, "unit", "cosine", 0, "0" * 64, "float32",
    columns=("x", "y", "z"),
)  # fmt: skip


@given(st.permutations(["x", "y", "z", "user", "note"]))
def test_columns_go_by_their_names(tmp_path_factory, order):
    """In another order they were scored as if they were in the first."""
    file = tmp_path_factory.mktemp("t") / "a.csv"
    value = {"x": "1", "y": "2.5", "z": "-3", "user": "7", "note": "9"}
    file.write_text(",".join(order) + "\n" + ",".join(value[name] for name in order) + "\n")
    assert [one.tolist() for one in read_samples([file], NAMED)] == [[1, 2.5, -3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "line 1: expected the names of the columns, by which the model takes them: x, y, z"),
        ("x,y\n1,2\n", "line 1: no column 'z', the model was trained with 3"),
        ("x,y,z,z\n1,2,3,4\n", "more than one column 'z'"),
        ("y,z,x\n1,2\n", "line 2: 2 cells, the header has more"),
        ("y,z,x\n1,2,a\n", "line 2: cell 1 is not a finite number"),
        ("y,z,x\n", "holds no row"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    refused(tmp_path / "a.csv", NAMED, message)
