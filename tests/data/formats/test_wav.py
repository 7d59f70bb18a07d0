"""Sound files: the right samples from good ones, one line from any others."""

import io
import struct
import sys
import wave

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data.formats.wav import SoundfileNeeded, decode_audio, resample, to_pcm
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _wav(samples, rate=8000, width=2, channels=1):
    """A PCM file of whole numbers (n,) or (n, channels) that fit the width."""
    raw = np.asarray(samples, np.int64).reshape(-1)
    if width == 1:
        body = (raw + 128).astype(np.uint8).tobytes()
    else:
        body = b"".join(int(value).to_bytes(width, "little", signed=True) for value in raw)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(body)
    return out.getvalue()


def _noise(number=1000, seed=0, top=30000):
    return np.random.default_rng(seed).integers(-top, top + 1, number)


def _write(folder, raw, name="a.wav"):
    (folder / name).write_bytes(raw)
    return folder / name


def test_16_bit_samples_come_as_they_are(tmp_path):
    samples = _noise()
    samples[:2] = -32768, 32767
    found = decode_audio(_write(tmp_path, _wav(samples), "A.WAV"), 8000)
    assert found.dtype == np.int16 and np.array_equal(found, samples)


@pytest.mark.parametrize("width, top", [(1, 127), (3, 2**23 - 1), (4, 2**31 - 1)])
def test_other_widths_keep_their_share_of_full_scale(tmp_path, width, top):
    samples = _noise(top=top)
    found = decode_audio(_write(tmp_path, _wav(samples, width=width)), 8000)
    for value, raw in zip(found.tolist(), samples.tolist()):
        assert abs(value / 32768 - raw / 2 ** (8 * width - 1)) <= 0.5001 / 32768


def test_channels_are_averaged(tmp_path):
    left, right = _noise(seed=1), _noise(seed=2)
    raw = _wav(np.stack([left, right], 1), channels=2)
    found = decode_audio(_write(tmp_path, raw), 8000)
    assert np.abs(found - (left + right) / 2).max() <= 0.5


@pytest.mark.parametrize("found_rate, wanted", [(48000, 8000), (44100, 16000), (8000, 16000), (11025, 8000)])
def test_a_tone_keeps_its_pitch_and_loudness(tmp_path, found_rate, wanted):
    """The resampled tone against the tone computed at the new rate, away from the ends."""
    hertz = 440.0
    tone = 16000 * np.sin(2 * np.pi * hertz * np.arange(found_rate // 2) / found_rate)
    got = decode_audio(_write(tmp_path, _wav(tone.round(), found_rate)), wanted)
    assert abs(len(got) - wanted // 2) <= 1
    expected = 16000 * np.sin(2 * np.pi * hertz * np.arange(len(got)) / wanted)
    assert np.abs(got - expected)[200:-200].max() < 16000 * 0.01


def test_frequencies_beyond_the_new_rate_are_gone():
    high = np.sin(2 * np.pi * 7000 * np.arange(16000) / 16000)
    assert np.abs(resample(high, 16000, 8000))[100:-100].max() < 0.01
    assert resample(high, 16000, 16000) is high


def test_floats_are_rounded_and_clipped():
    assert to_pcm(np.array([0.0, 0.5, -1.0, 1.0, 7.0, -7.0, 0.4 / 32768])).tolist() == [
        0,
        16384,
        -32768,
        32767,
        32767,
        -32768,
        0,
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_named(value):
    with pytest.raises(SelfsameError, match="sample 2 is not a finite number"):
        to_pcm(np.array([0.0, 0.5, value, value]))


GOOD = _wav(_noise())


@pytest.mark.parametrize(
    "raw, line",
    [
        (b"", "empty file"),
        (b"RIFF", "not a wav file"),
        (b"\0" * 100, "not a wav file .*RIFF"),
        (GOOD[:40], "not a wav file"),
        (GOOD[:44], "truncated: 0 of 1,000 samples are there"),
        (GOOD[:-100], "truncated: 950 of 1,000 samples are there"),
        (_wav([]), "0.0000 s of audio, at least 0.1 s is needed"),
        (_wav(_noise(799)), "0.0999 s of audio, at least 0.1 s is needed"),
        (_wav([7] * 1000), "silent: all samples are equal"),
        (_wav(_noise(), rate=999), "999 samples a second, expected 1000 to 384000"),
        (_wav(_noise(), rate=2**31 - 1), "2147483647 samples a second"),
    ],
)
def test_broken_files_get_one_line(tmp_path, raw, line):
    with pytest.raises(SelfsameError, match=line) as caught:
        decode_audio(_write(tmp_path, raw), 8000)
    assert "\n" not in str(caught.value)


def test_a_header_that_promises_gigabytes_is_only_truncated(tmp_path):
    raw = bytearray(GOOD)
    raw[4:8] = raw[40:44] = struct.pack("<I", 2**32 - 2)
    with pytest.raises(SelfsameError, match="truncated: 1,000 of 2,147,483,647 samples"):
        decode_audio(_write(tmp_path, bytes(raw)), 8000)


def test_a_folder_and_an_absent_file_get_one_line(tmp_path):
    with pytest.raises(SelfsameError, match=r"cannot be read \(No such file"):
        decode_audio(tmp_path / "none.wav", 8000)
    (tmp_path / "folder.wav").mkdir()
    with pytest.raises(SelfsameError, match="cannot be read"):
        decode_audio(tmp_path / "folder.wav", 8000)


def _float_wav(samples, rate=8000):
    body = np.asarray(samples, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, rate, 4 * rate, 4, 32)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_without_soundfile_the_line_names_the_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SoundfileNeeded, match=rf"{name}: .*selfsame\[audio\]"):
        decode_audio(_write(tmp_path, _float_wav(np.zeros(1000)), name), 8000)


def test_soundfile_reads_what_the_standard_library_does_not(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    samples = _noise().astype(np.int16)
    soundfile.write(tmp_path / "a.flac", samples, 8000, subtype="PCM_16")
    assert np.array_equal(decode_audio(tmp_path / "a.flac", 8000), samples)
    assert np.array_equal(decode_audio(_write(tmp_path, _float_wav(samples / 32768)), 8000), samples)
    raw = (tmp_path / "a.flac").read_bytes()
    for broken in (raw[: len(raw) // 2], raw[:20], b"fLaC" + bytes(100)):
        with pytest.raises(SelfsameError, match=r"truncated|cannot be decoded"):
            decode_audio(_write(tmp_path, broken, "b.flac"), 8000)
    with pytest.raises(SelfsameError, match="sample 5 is not a finite number"):
        decode_audio(_write(tmp_path, _float_wav([0.1] * 5 + [np.nan] * 1000)), 16000)


def _decodes(path):
    try:
        found = decode_audio(path, 8000)
    except SelfsameError as error:
        assert "\n" not in str(error) and str(error)
        return
    except SoundfileNeeded:
        return
    assert found.dtype == np.int16 and found.ndim == 1 and len(found) > 0


@FUZZ
@given(raw=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: GOOD[:12] + tail)))
def test_random_bytes_decode_or_get_one_line(tmp_path, raw):
    _decodes(_write(tmp_path, raw))


@FUZZ
@given(data=st.data())
def test_changed_headers_decode_or_get_one_line(tmp_path, data):
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 45))] = data.draw(st.integers(0, 255))
    _decodes(_write(tmp_path, bytes(raw[: data.draw(st.integers(0, len(raw)))])))
    _decodes(_write(tmp_path, bytes(raw)))
