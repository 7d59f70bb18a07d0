"""The voice encoder by its states over time and the spectrum beside them: by plain loops, as a start, and exported."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from selfsame.config.recipe import NetPart
from selfsame.data import Samples, from_classes
from selfsame.engine.starting import load_weights
from selfsame.engine.weight_files import read_weights
from selfsame.errors import SelfsameError
from selfsame.nets import build, ge2e_voice
from selfsame.nets.ge2e_voice import VoiceFront, spectrum


def sound(number, samples, dtype=torch.float64):
    return torch.randn(number, 1, samples, generator=torch.Generator().manual_seed(2), dtype=dtype) / 20


def length(row):
    return math.sqrt(sum(x * x for x in row))


def by_loops(state_TH, frame_TK, bands):
    """What one part gives, in plain float64."""
    frames = len(state_TH)
    mean = [sum(row[d] for row in state_TH) / frames for d in range(256)]
    out = [x / length(mean) for x in mean]
    logs = [[math.log(row[k] + 1e-6) for row in frame_TK] for k in range(bands)]
    means = [sum(column) / frames for column in logs]
    out += [0.1 * (m + 5.8 + 0.18 * k) for k, m in enumerate(means)]
    for column, m in zip(logs, means, strict=True):
        out.append(0.1 * (math.sqrt(sum((x - m) ** 2 for x in column) / frames + 1e-6) - 2))
    return out


@pytest.mark.parametrize("bands", [0, 3])
def test_an_embedding_by_plain_loops(bands):
    net = build("ge2e-voice", (1, 17000), 256 + 2 * bands, rate=8000, states=True).double()
    x = sound(2, 17000)
    parts_SPTK = net.front(x)
    assert parts_SPTK.shape == (2, 2, 160, 40)  # two parts
    with torch.no_grad():
        found = net(x)
        for parts_PTK, out_D in zip(parts_SPTK, found, strict=True):
            each = [by_loops(net.lstm(part[None])[0][0].tolist(), part.tolist(), bands) for part in parts_PTK]
            mean = [(a + b) / 2 for a, b in zip(*each, strict=True)]
            assert out_D.tolist() == pytest.approx([value / length(mean) for value in mean], abs=1e-12)


def test_recordings_are_louder_than_published():
    quiet = sound(1, 9000) / 1000
    plain, louder = VoiceFront(16000, 9000, False)(quiet), VoiceFront(16000, 9000, False, -25)(quiet)
    torch.testing.assert_close(louder, plain * 10**0.5)
    net = build("ge2e-voice", (1, 9000), 256, states=True)
    assert (net.front.loud, build("ge2e-voice", (1, 9000), 256).front.loud) == (-25, -30)


def test_silence_has_a_gradient():
    frame_TK = torch.zeros(1, 5, 40, requires_grad=True)
    spectrum(frame_TK, 4).sum().backward()
    assert bool(torch.isfinite(frame_TK.grad).all())


@pytest.mark.parametrize("width", [7, 255, 257, 338])
def test_widths_that_do_not_fit(width):
    with pytest.raises(SelfsameError, match=f"ge2e-voice: states: net.width must be 256, or up to 336 .* got {width}"):
        build("ge2e-voice", (1, 9000), width, states=True)


@pytest.mark.parametrize("other", ["trim", "signed"])
def test_what_does_not_go_with_states(other):
    with pytest.raises(SelfsameError, match="states: has no last layer"):
        build("ge2e-voice", (1, 9000), 256, states=True, **{other: True})


def test_published_weights_are_a_start_without_their_last_layer(tmp_path):
    published = build("ge2e-voice", (1, 9000), 256, seed=1)
    save_file(published.state_dict(), tmp_path / "voice.safetensors")
    weights = read_weights(tmp_path / "voice.safetensors")
    net = build("ge2e-voice", (1, 9000), 320, states=True)
    load_weights(net, NetPart(name="ge2e-voice"), weights)
    given = {name: value for name, value in published.state_dict().items() if not name.startswith("linear.")}
    assert set(net.state_dict()) == set(given)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in given.items())
    with pytest.raises(SelfsameError, match="does not fit the network: 1 missing"):
        lacks = {name: value for name, value in weights.tensors.items() if name != "linear.weight"}
        load_weights(published, NetPart(skip=("linear.bias",)), replace(weights, tensors=lacks))


def test_the_file_equals_pytorch(monkeypatch):
    """With one layer: export/test_encoders.py has two, and exporting takes as long as there are."""
    monkeypatch.setattr(ge2e_voice, "LAYERS", 1)
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from selfsame.device.embedder import OnnxEmbedder
    from selfsame.export.graph import CLOSE, OPSET, difference, finished, to_onnx
    from selfsame.export.trained import describe
    from selfsame.methods import make

    raw = (sound(6, 700, torch.float32) * 32768).to(torch.int16)
    raw[1] //= 1000  # quiet
    raw[2, :, :350] = 0
    y = torch.arange(6) // 3
    data = from_classes("made up", raw, y, test=Samples(raw, y), unseen=Samples(raw[:0], y[:0])).full_scale()
    net = build("ge2e-voice", (1, 700), 320, seed=3, rate=8000, states=True).eval()
    card = describe(make("fedaws", {}), data, net, 320, opset=OPSET)
    file = OnnxEmbedder(finished(to_onnx(net, data, raw[:2]), card), "the file")
    with torch.no_grad():
        wanted = net(raw.float() / 32768).numpy()
    assert difference(file.embed(raw.numpy()), wanted) < CLOSE
