"""Ready encoders as model files: with what stands before the layers, and equal to PyTorch on random weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selfsame.data import Samples, from_classes
from selfsame.device.embedder import OnnxEmbedder
from selfsame.export.graph import CLOSE, OPSET, difference, finished, to_int8, to_onnx
from selfsame.export.trained import describe
from selfsame.methods import make
from selfsame.nets import build, dlib_face, ge2e_voice
from selfsame.nets.crop import EyesAt

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("operators_once")

CASES = [
    ("ge2e-voice", (1, 700), torch.int16, {"rate": 8000, "trim": True}, 0.6, 0.005),
    ("dlib-face", (3, 12, 10), torch.uint8, {"crop": 8, "size": 103}, 0.35, 0.1),
    ("dlib-face", (3, 12, 10), torch.uint8, {"eyes": [2, 4, 6, 5], "size": 103, "mirror": True}, 0.4, 0.1),
]


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "options", "smaller", "near"), CASES, ids=["voices", "faces", "faces, mirrored"]
)
def test_the_file_equals_pytorch(name, shape, dtype, options, smaller, near, monkeypatch):
    """dlib's with five blocks of fourteen, ge2e's with two layers of three: exporting takes as long as there are."""
    monkeypatch.setattr(ge2e_voice, "LAYERS", 2)
    monkeypatch.setattr(dlib_face, "BLOCKS", ((32, False), (64, True), (128, True), (256, True), (256, True)))
    kind, draw = torch.iinfo(dtype), torch.Generator().manual_seed(0)
    raw = torch.randint(kind.min // 4, kind.max // 4, (6, *shape), generator=draw, dtype=dtype)
    raw[1] = raw[1] // (1000 if dtype == torch.int16 else 50)  # quiet, or dark
    raw[2, :, : shape[1] // 2] = 0
    y = torch.arange(6) // 3
    none = Samples(raw[:0], y[:0])
    data = from_classes("made up", raw, y, test=Samples(raw, y), unseen=none).full_scale()
    net = build(name, shape, 8, seed=3, **options).eval()
    card = describe(make("fedaws", {}), data, net, 8, opset=OPSET)
    graph = to_onnx(net, data, raw[:2])
    plain = finished(graph, card)
    file = OnnxEmbedder(plain, "the file")
    with torch.no_grad():
        wanted = net(raw.float() / (kind.max + 1 if dtype == torch.int16 else kind.max)).numpy()
    assert difference(file.embed(raw.numpy()), wanted) < CLOSE
    small = finished(to_int8(graph, raw.numpy()), replace(card, variant="int8"))
    assert len(small) < smaller * len(plain)
    assert difference(OnnxEmbedder(small, "the int8 file").embed(raw.numpy()), wanted) < near
    assert len(np.unique(wanted.round(4), axis=0)) == 6


class Turned(nn.Module):
    """Aligned pictures and one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.front = EyesAt((3, 9, 8), (2, 3, 5, 4), (0.3, 0.3, 0.7, 0.3), 6)
        self.last = nn.Linear(3 * 6 * 6, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.front(x).flatten(1))
        return out


def test_alignment_is_in_the_file():
    raw = torch.randint(0, 256, (6, 3, 9, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y = torch.arange(6) // 3
    data = from_classes("made up", raw, y, test=Samples(raw, y), unseen=Samples(raw[:0], y[:0])).full_scale()
    net = Turned().eval()
    card = describe(make("fedaws", {}), data, net, 8, opset=OPSET)
    file = OnnxEmbedder(finished(to_onnx(net, data, raw[:2]), card), "the file")
    with torch.no_grad():
        assert difference(file.embed(raw.numpy()), net(raw.float() / 255).numpy()) < CLOSE
