"""What to begin with on somebody's own folders: sizes, colour, network and cohort, by a look at some of the files.

The aim is a first run of minutes on a laptop without a GPU. Everything can be set otherwise.
"""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from selfsame.data.formats.pictures import ENDINGS
from selfsame.data.listing import Listing, list_files, subfolders
from selfsame.errors import SelfsameError

Tables = dict[str, dict[str, Any]]

_LOOKED = 64  # files that are opened
_LEAST_SIDE, _CPU_SIDE, _GPU_SIDE = 16, 32, 112
_CPU_COHORT, _GPU_COHORT = 16, 64
_NARROW = 4.0  # the mean difference of colours below which a picture is grey
_CPU_SECONDS = 1.0
_SMALL_NET = {"name": "lenet", "width": 64, "channels": [16, 32]}


def advise(name: str, path: Path, gpu: bool) -> Tables:
    """Tables of a recipe that suit the files in this folder and the machine; none for other data sets."""
    advisers = {"imagefolder": _pictures, "audiofolder": _recordings}
    if name not in advisers or not path.is_dir():
        return {}
    try:
        return advisers[name](path, gpu)
    except (SelfsameError, OSError):
        return {}  # loading says what is wrong


def advice_words(advice: Mapping[str, Mapping[str, Any]], gpu: bool) -> str:
    """What was chosen, as options of the command line."""
    said = [f"{part}.{key}={_value(value)}" for part, table in advice.items() for key, value in table.items()]
    return f"chosen for these files and {'a GPU' if gpu else 'no GPU'}: {', '.join(said)}; --set changes each"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spread(files: Sequence[str]) -> list[str]:
    step = max(1, len(files) // _LOOKED)
    return list(files[::step][:_LOOKED])


def _cohort(found: Listing, gpu: bool) -> dict[str, Any]:
    """Everybody where they are few: then nobody's part of a round is lost."""
    people = int((found.count_P >= 3).sum())
    most = _GPU_COHORT if gpu else _CPU_COHORT
    return {"size": most} if 0.8 * people > 1.5 * most else {}


def _pictures(path: Path, gpu: bool) -> Tables:
    from PIL import Image

    folders = subfolders(path)
    found = list_files(path, folders, folders, "an image", ENDINGS, deep=True)
    sides, grey = [], []
    for file in _spread(found.files):
        try:
            with Image.open(path / file) as image:
                sides.append(min(image.size))
                grey.append(_is_grey(image))
        except Exception:  # whatever is wrong with it, loading counts it
            continue
    if not sides:
        return {}
    side = max(_LEAST_SIDE, min(int(median(sides)) // 4 * 4, _GPU_SIDE if gpu else _CPU_SIDE))
    net: dict[str, Any] = {"name": "mobilefacenet", "width": 128} if gpu else _SMALL_NET
    if side < _CPU_SIDE:
        net = _SMALL_NET
    tables: Tables = {"data": {"size": side, "grey": all(grey)}, "net": net, "cohort": _cohort(found, gpu)}
    return {part: table for part, table in tables.items() if table}


def _is_grey(image: Any) -> bool:
    if image.mode in ("1", "L", "LA", "I", "I;16"):
        return True
    small = image.convert("RGB").resize((16, 16))
    pixels = np.asarray(small).astype(np.int64)
    return float(np.ptp(pixels, axis=2).mean()) < _NARROW


def _recordings(path: Path, gpu: bool) -> Tables:
    folders = subfolders(path)
    found = list_files(path, folders, folders, "a wav or flac file", (".wav", ".flac"), deep=True)
    if gpu:
        return {part: table for part, table in {"cohort": _cohort(found, gpu)}.items() if table}
    lengths = []
    for file in _spread([file for file in found.files if file.lower().endswith(".wav")]):
        try:
            with wave.open(str(path / file), "rb") as opened:
                lengths.append(opened.getnframes() / opened.getframerate())
        except (OSError, EOFError, wave.Error, ZeroDivisionError):
            continue
    usual = max(0.2, round(median(lengths), 1)) if lengths else 2 * _CPU_SECONDS
    data = {"seconds": min(_CPU_SECONDS, usual), "test_seconds": min(2 * _CPU_SECONDS, usual)}
    tables: Tables = {"data": data, "net": {"name": "lenet-mel", "width": 64}, "cohort": _cohort(found, gpu)}
    return {part: table for part, table in tables.items() if table}
