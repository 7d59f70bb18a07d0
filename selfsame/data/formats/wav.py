"""Sound files as one channel of 16-bit samples at one rate."""

from __future__ import annotations

import math
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError, one_line

Pcm = NDArray[np.int16]

RATES = (1_000, 384_000)  # samples a second; beyond these a file is no recording of speech
SHORTEST = 0.1  # seconds


class SoundfileNeeded(Exception):
    """A file that only soundfile reads, where that is not installed: no fault of the file, so no SelfsameError."""


def decode_audio(path: Path, rate: int) -> Pcm:
    """A sound file as one channel of 16-bit samples at `rate` a second."""
    try:
        if path.stat().st_size == 0:
            raise SelfsameError("empty file")
        found, x_SC = _read_wav(path) if path.suffix.lower() == ".wav" else _read_other(path)
    except OSError as error:
        raise SelfsameError(f"cannot be read ({error.strerror or type(error).__name__})") from error
    if not RATES[0] <= found <= RATES[1]:
        raise SelfsameError(f"{found} samples a second, expected {RATES[0]} to {RATES[1]}")
    if len(x_SC) < SHORTEST * found:
        raise SelfsameError(f"{len(x_SC) / found:.4f} s of audio, at least {SHORTEST} s is needed")
    if x_SC.dtype == np.int16 and x_SC.shape[1] == 1 and found == rate:
        pcm: Pcm = x_SC[:, 0]
    else:
        pcm = to_pcm(resample(_floats(x_SC).mean(1), found, rate))
    if int(pcm.min()) == int(pcm.max()):
        raise SelfsameError("silent: all samples are equal")
    return pcm


def resample(x_S: NDArray[np.float64], found: int, wanted: int) -> NDArray[np.float64]:
    """Audio at `found` samples a second as audio at `wanted`, low-passed where that loses frequencies."""
    if found == wanted or not np.isfinite(x_S).all():
        return x_S
    from scipy.signal import resample_poly  # slow to import

    shared = math.gcd(found, wanted)
    out: NDArray[np.float64] = resample_poly(x_S, wanted // shared, found // shared)
    return out


def to_pcm(x_S: NDArray[np.float64]) -> Pcm:
    """Samples between -1 and 1 as 16-bit whole numbers; what lies beyond is clipped."""
    if not np.isfinite(x_S).all():
        raise SelfsameError(f"sample {int((~np.isfinite(x_S)).argmax())} is not a finite number")
    pcm: Pcm = np.clip(np.rint(x_S * 32768.0), -32768, 32767).astype(np.int16)
    return pcm


def _floats(x_SC: NDArray[Any]) -> NDArray[np.float64]:
    """Whole numbers divided by their full scale, so that all forms lie between -1 and 1."""
    full = 1.0 if x_SC.dtype.kind == "f" else 2.0 ** (8 * x_SC.dtype.itemsize - 1)
    return x_SC.astype(np.float64) / full


def _read_wav(path: Path) -> tuple[int, NDArray[Any]]:
    """(rate, samples by channels) of a PCM file; other forms of wav are left to soundfile.

    The standard library's reader comes first, so that the samples are the same whether soundfile is there or not.
    """
    try:
        with wave.open(str(path)) as file:
            channels, width, rate, number = file.getparams()[:4]
            # No more than the file can hold: a false header must not allocate gigabytes.
            raw = file.readframes(min(number, path.stat().st_size // (channels * width) + 1))
    except (wave.Error, EOFError, RuntimeError) as error:
        if str(error).startswith("unknown format"):
            return _read_other(path)
        raise SelfsameError(f"not a wav file ({error or 'it ends too early'})") from error
    if len(raw) != number * channels * width:
        raise SelfsameError(f"truncated: {len(raw) // (channels * width):,} of {number:,} samples are there")
    return rate, _whole(raw, width).reshape(-1, channels)


def _whole(raw: bytes, width: int) -> NDArray[Any]:
    """Whole numbers of 16 or 32 bits from samples of 1 to 4 bytes, at the same share of the full scale."""
    if width == 1:  # the one form without a sign
        return (np.frombuffer(raw, np.uint8).astype(np.int16) - 128) * np.int16(256)
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0]
    if width not in (2, 4):
        raise SelfsameError(f"samples of {width} bytes, expected 1 to 4")
    return np.frombuffer(raw, np.int16 if width == 2 else np.int32)


def _read_other(path: Path) -> tuple[int, NDArray[Any]]:
    """(rate, samples by channels) of whatever soundfile reads."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # the package, or the library it looks for
        raise SoundfileNeeded(f"{path}: not PCM wav, so it takes soundfile: pip install 'selfsame[audio]'") from error
    try:
        with soundfile.SoundFile(path) as file:
            rate, number, subtype = int(file.samplerate), int(file.frames), str(file.subtype)
            x_SC = file.read(dtype="int16" if subtype == "PCM_16" else "float64", always_2d=True)
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise SelfsameError(f"cannot be decoded: {one_line(error, path)}") from error
    if len(x_SC) != number:
        raise SelfsameError(f"truncated: {len(x_SC):,} of {number:,} samples are there")
    return rate, x_SC
