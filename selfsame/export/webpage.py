"""A model as a static web page: it enrols and verifies in the browser, and no sample or template leaves it.

The page is our own modules under `web/`, the model file with its card, and two files of onnxruntime-web, copied from an
installed package of one version whose digests are known here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from selfsame.device.card import Card
from selfsame.device.model_file import read_card
from selfsame.errors import SelfsameError
from selfsame.files import parse_json, read_text, write

FORMAT = "selfsame-web-1"
RUNTIME = Path("node_modules/onnxruntime-web")
RUNTIME_VERSION = "1.30.0"
SCRIPT, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
PINS = {  # sha256 of the files in the package's dist/
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}

_INSTALL = f"type: npm install onnxruntime-web@{RUNTIME_VERSION}"
_SOURCES = Path(__file__).with_name("web")
_WORKER, _INDEX, _MANIFEST = "sw.js", "index.html", "manifest.json"
_VERSION_MARK = "@VERSION@"
_MOST_BYTES = 1 << 26  # of a file of the runtime


def read_runtime(folder: Path) -> dict[str, bytes]:
    """The files of an installed onnxruntime-web that the page needs, if they are those of the pinned version."""
    try:
        about = parse_json(read_text(folder / "package.json"))
    except (SelfsameError, ValueError):
        about = None
    if not isinstance(about, dict) or about.get("name") != "onnxruntime-web":
        raise SelfsameError(f"--runtime {folder}: no onnxruntime-web there; {_INSTALL}")
    if about.get("version") != RUNTIME_VERSION:
        found = f"onnxruntime-web {about.get('version')}"[:40]
        raise SelfsameError(f"--runtime {folder}: {found}, the page takes {RUNTIME_VERSION}; {_INSTALL}")
    return {name: _pinned(folder / "dist" / name, pin) for name, pin in PINS.items()}


def _pinned(file: Path, pin: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        raise SelfsameError(f"{file}: {error.strerror or error}; {_INSTALL}") from None
    if _sha256(data) != pin:
        raise SelfsameError(f"{file}: changed, its digest is not that of onnxruntime-web {RUNTIME_VERSION}; {_INSTALL}")
    return data


def page_files(model: bytes, name: str, runtime: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file of the page by its name; `name` is the model's, for the message."""
    card = read_card(model, name)
    if not is_shown(card):
        shape = "x".join("any" if size < 0 else str(size) for size in card.shape)
        raise SelfsameError(
            f"{name}: --web takes models of pictures and recordings, this one takes {card.dtype} of shape {shape}"
        )
    text = card.to_json().encode()
    if text not in model:
        raise SelfsameError(f"{name}: its card was written by another version of selfsame; export it again")
    own = {file.name: file.read_bytes() for file in sorted(_SOURCES.iterdir()) if file.is_file()}
    worker = own.pop(_WORKER).decode()
    files = {**own, **runtime, "model.onnx": model, "card.json": text}
    manifest = json.dumps(
        {
            "format": FORMAT,
            "digest": card.digest,
            "runtime": {"name": "onnxruntime-web", "version": RUNTIME_VERSION, "script": SCRIPT, "wasm": WASM},
            "files": {file: _sha256(data) for file, data in sorted(files.items())},
        },
        indent=1,
    ).encode()
    worker = worker.replace(_VERSION_MARK, _sha256(manifest))
    return {**files, _MANIFEST: manifest, _WORKER: worker.encode()}


def is_shown(card: Card) -> bool:
    """Whether a browser can record what the model takes: pictures, grey or in colour, or recordings."""
    picture = card.dtype == "uint8" and len(card.shape) == 3 and card.shape[0] in (1, 3) and card.shape[-1] > 0
    return picture or (card.dtype == "int16" and len(card.shape) == 2 and card.shape[0] == 1)


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else than an earlier page."""
    if folder.exists() and not folder.is_dir():
        raise SelfsameError(f"--web {folder}: is a file, expected a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        found = parse_json(read_text(folder / _MANIFEST))
    except (SelfsameError, ValueError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SelfsameError(f"--web {folder}: holds files that are not a page of selfsame; name another folder")


def write_page(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put the files there, each whole; the page itself comes last, so that it never names a file that is missing."""
    for name in sorted(files, key=lambda name: (name in (_WORKER, _MANIFEST), name == _INDEX, name)):
        write(folder / name, files[name])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
