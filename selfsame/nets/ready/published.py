"""From the names and layouts of published weights to those of our networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.nets.dlib_face import BLOCKS
from selfsame.nets.ready.legacy_pt import read_legacy
from selfsame.nets.ready.shards import Floats, read_shards

_TRAINING = ("similarity_weight", "similarity_bias")  # of GE2E's loss, not of its network


def dlib_face(files: Callable[[str], bytes]) -> dict[str, Tensor]:
    """From TensorFlow.js: kernels (H, W, in, out) to (out, in, H, W), biases before the gain into the shift."""
    given = read_shards(files("face_recognition_model-weights_manifest.json"), files)
    out = _scaled(given, "conv32_down", "stem")
    for place, name in enumerate(block_names()):
        for conv in ("conv1", "conv2"):
            out |= _scaled(given, f"{name}/{conv}", f"blocks.{place}.{conv}")
    out["head.weight"] = torch.from_numpy(np.ascontiguousarray(_taken(given, "fc", 2).T))
    return _nothing_left(given, out)


def block_names() -> list[str]:
    """What the publisher calls the blocks: by channels and number, those that halve the sides `down`."""
    names: list[str] = []
    for channels, halves in BLOCKS:
        down = f"conv{channels}_down"
        number = 1 + sum(name.startswith(f"conv{channels}_") and name != down for name in names)
        names.append(f"conv{channels}_{number}" if not halves else f"{down}_out" if down in names else down)
    return names


def _scaled(given: dict[str, Floats], theirs: str, ours: str) -> dict[str, Tensor]:
    kernel = _taken(given, f"{theirs}/conv/filters", 4).transpose(3, 2, 0, 1)
    bias, gain, shift = (
        _taken(given, f"{theirs}/{part}", 1) for part in ("conv/bias", "scale/weights", "scale/biases")
    )
    if not kernel.shape[:1] == bias.shape == gain.shape == shift.shape:
        raise SelfsameError(f"{theirs}: kernels, bias, gain and shift are not of one number of channels")
    parts = {"conv.weight": kernel, "gain": gain, "shift": shift + gain * bias}
    return {f"{ours}.{name}": torch.from_numpy(np.ascontiguousarray(value)) for name, value in parts.items()}


def _taken(given: dict[str, Floats], name: str, axes: int) -> Floats:
    """The tensor of this name, which is then no longer among the given."""
    value = given.pop(name, None)
    if value is None or value.ndim != axes:
        raise SelfsameError(f"{name}: {'is missing' if value is None else f'has {value.ndim} axes, expected {axes}'}")
    return value


def _nothing_left(given: dict[str, Floats], out: dict[str, Tensor]) -> dict[str, Tensor]:
    if given:
        raise SelfsameError(f"holds tensors that nothing is known of: {', '.join(sorted(given))[:80]}")
    return out


def ge2e_voice(files: Callable[[str], bytes]) -> dict[str, Tensor]:
    """From PyTorch: the names are ours already; what the loss learnt beside the network is left out."""
    given = read_legacy(files("pretrained.pt"), "model_state")
    return {name: torch.from_numpy(value) for name, value in given.items() if name not in _TRAINING}
