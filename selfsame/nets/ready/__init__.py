"""Encoders that others have trained: where their weights are published, and how they become ours.

None of the weights are here. A published file is known by its digest, read without running anything, brought to our
names, and left only where the network gives a known answer with it.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from selfsame.errors import SelfsameError, one_line
from selfsame.files import in_order, write
from selfsame.nets import build
from selfsame.nets.ready.published import dlib_face, ge2e_voice

FORMAT = "selfsame-encoder-1"
_MOST_BYTES = 2**28  # of a package or a file in it
_CLOSE = 1e-3  # between an embedding and the known one, as a share of its length

Files = Callable[[str], bytes]  # the content of one of the published files, by name


@dataclass(frozen=True)
class Encoder:
    """A network and the published files that hold its weights; the first file is the one that a user names."""

    name: str
    what: str
    package: str
    address: str
    licence: str
    files: dict[str, str]  # path in the package, and SHA-256
    convert: Callable[[Files], dict[str, Tensor]]
    shape: tuple[int, ...]  # of the sample with the known answer
    width: int
    answer: tuple[float, ...]  # the first numbers of its embedding


READY: dict[str, Encoder] = {
    "dlib-face": Encoder(
        "dlib-face",
        "faces, 150x150, 128-d, by distance",
        "npm @vladmandic/face-api 1.7.15",
        "https://www.npmjs.com/package/@vladmandic/face-api/v/1.7.15",
        "MIT",
        {
            "package/model/face_recognition_model-weights_manifest.json": (
                "cbaffa501b0b9275a12b63357a6843e7e30c054e1c9151e1a5f879b26e32986b"
            ),
            "package/model/face_recognition_model.bin": (
                "b413e420d6840b2775fba32008db6f3cddb07d485967fb42cfcf379c16a8c589"
            ),
        },
        dlib_face,
        (3, 150, 150),
        128,
        (-0.045288, 0.099913, 0.072919, -0.028436, -0.045726, -0.062815),
    ),
    "ge2e-voice": Encoder(
        "ge2e-voice",
        "voices, 16 kHz, 256-d, by cosine",
        "PyPI Resemblyzer 0.1.4",
        "https://pypi.org/project/Resemblyzer/0.1.4/#files",
        "Apache-2.0",
        {"resemblyzer/pretrained.pt": "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"},
        ge2e_voice,
        (1, 32000),
        256,
        (0.0, 0.056575, 0.0, 0.0, 0.0, 0.022125, 0.013046, 0.041519),
    ),
}


def known(name: str) -> Encoder:
    """The encoder of this name, or one line that says which there are."""
    if name not in READY:
        raise SelfsameError(f"unknown encoder {name!r}; the encoders are: {', '.join(READY)}")
    return READY[name]


def converted(encoder: Encoder, file: Path) -> dict[str, Tensor]:
    """The network's parameters by name from the published package, or from its file of weights."""
    try:
        content = {path: _content(file, path, path == next(iter(encoder.files))) for path in encoder.files}
        for path, digest in encoder.files.items():
            found = hashlib.sha256(content[path]).hexdigest()
            if found != digest:
                raise SelfsameError(f"{Path(path).name} is not that of {encoder.package}: its SHA-256 is {found}")
        tensors = encoder.convert(lambda name: _of(content, name))
        net = filled(build(encoder.name, encoder.shape, encoder.width), tensors)
        _check_answer(encoder, net)
    except SelfsameError as error:
        raise SelfsameError(f"{file}: {error}") from None
    return tensors


def _of(content: dict[str, bytes], name: str) -> bytes:
    """One of the published files by its name without a folder."""
    for path, data in content.items():
        if Path(path).name == name:
            return data
    raise SelfsameError(f"asks for {name[:60]!r}, which is not among the published files")


def _content(file: Path, path: str, first: bool) -> bytes:
    """A published file: in the package (.tgz, .whl), the named file itself, or one beside that."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SelfsameError("not a file")
        if file.suffix in (".tgz", ".gz"):
            return _from_tar(file, path)
        if file.suffix in (".whl", ".zip"):
            return _from_zip(file, path)
        return _few(open(file if first else file.with_name(Path(path).name), "rb"))
    except FileNotFoundError as error:
        raise SelfsameError(f"no such file: {Path(error.filename).name}") from None
    except KeyError:
        raise SelfsameError(f"has no {path}") from None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError) as error:
        raise SelfsameError(f"cannot be read ({one_line(error, file)})") from None


def _from_tar(file: Path, path: str) -> bytes:
    with tarfile.open(file, "r:gz") as package:
        member = package.getmember(path)
        stream = package.extractfile(member) if member.isreg() else None
        if stream is None:
            raise SelfsameError(f"{path} in it is not a plain file")
        return _few(stream)


def _from_zip(file: Path, path: str) -> bytes:
    with zipfile.ZipFile(file) as package:
        return _few(package.open(path))


def _few(stream: IO[bytes]) -> bytes:
    with stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise SelfsameError(f"more than {_MOST_BYTES:,} bytes")
    return data


def filled(net: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """The network with these parameters, or one line that says what does not fit."""
    wanted = {name: tuple(value.shape) for name, value in net.named_parameters()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    lacks, more = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    other = [
        f"{name} {given[name]}, not {wanted[name]}" for name in wanted if given.get(name, wanted[name]) != wanted[name]
    ]
    said = [
        f"{what}: {', '.join(names[:3])}"
        for what, names in (("lacks", lacks), ("more", more), ("shape", other))
        if names
    ]
    if said:
        raise SelfsameError(f"the weights do not fit the network ({'; '.join(said)})")
    net.load_state_dict(tensors)
    return net


def sample_of(shape: tuple[int, ...]) -> Tensor:
    """A sample (1, *shape), full scale 1, of which every encoder's answer is known: waves that grow shorter."""
    count = torch.Size(shape).numel()
    place = torch.arange(count, dtype=torch.float64) / count
    return (0.5 + 0.4 * (300 * place * (1 + place)).sin()).reshape(1, *shape).float()


@torch.no_grad()
def answer_of(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The embedding (D,) of the known sample."""
    out: Tensor = net(sample_of(shape))[0]
    return out


def _check_answer(encoder: Encoder, net: nn.Module) -> None:
    emb_D = answer_of(net, encoder.shape)
    length = float(emb_D.norm())
    apart = float((emb_D[: len(encoder.answer)] - torch.tensor(encoder.answer)).abs().max())
    if not apart <= _CLOSE * length:
        raise SelfsameError(f"the network's answer is {apart:.2g} away from the known one: nothing was written")


def save(encoder: Encoder, tensors: dict[str, Tensor], out: Path) -> None:
    """A safetensors file with the network's parameters by name, and where they are from."""
    from safetensors.torch import save

    meta = {"format": FORMAT, "net": encoder.name, "package": encoder.package, "licence": encoder.licence}
    write(out, in_order(save({name: value.contiguous() for name, value in tensors.items()}, metadata=meta)))
