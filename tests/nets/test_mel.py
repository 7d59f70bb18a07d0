"""Log mel filterbanks against a plain loop, a plain Fourier transform and librosa."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from selfsame.errors import SelfsameError
from selfsame.nets.coupling import batch_coupled
from selfsame.nets.fastresnet import FastResNet34
from selfsame.nets.mel import LogMel, WithMel, mel_filters, mel_resnet34


def _audio(number, samples, seed=0):
    """Noise with two tones: quiet and loud frequencies in one signal."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples)
    tones = 0.3 * np.sin(0.2 * time + rng.random((number, 1))) + 0.1 * np.sin(1.3 * time)
    return tones + 0.01 * rng.standard_normal((number, samples))


def _by_hand(x, rate, mels, window, hop):
    """One frame, one frequency and one filter after another."""
    wide, step = round(rate * window), round(rate * hop)
    size = 1
    while size < wide:
        size *= 2
    begin = -(size // 2) + (size - wide) // 2
    edges = [700 * (10 ** (2595 * math.log10(1 + rate / 1400) * i / (mels + 1) / 2595) - 1) for i in range(mels + 2)]
    out = []
    for centre in range(0, len(x) + 1, step):
        frame = np.zeros(size)
        for i in range(wide):
            at = centre + begin + i
            at = -at if at < 0 else at
            at = 2 * (len(x) - 1) - at if at >= len(x) else at
            frame[i] = x[at] * (0.54 - 0.46 * math.cos(2 * math.pi * i / wide))
        power = np.abs(np.fft.rfft(frame)) ** 2
        row = []
        for k in range(mels):
            low, top, high = edges[k : k + 3]
            total = 0.0
            for f, value in enumerate(power):
                hertz = f * rate / size
                if low < hertz <= top:
                    total += value * (hertz - low) / (top - low)
                elif top < hertz < high:
                    total += value * (high - hertz) / (high - top)
            row.append(math.log(total + 1e-6))
        out.append(row)
    return np.array(out).T


@pytest.mark.parametrize(
    "rate, mels, window, hop, samples",
    [
        (8000, 40, 0.025, 0.010, 1000),
        (16000, 40, 0.025, 0.010, 960),
        (11025, 20, 0.025, 0.010, 700),  # a window of 276 samples, a hop of 110
        (8000, 12, 0.0201, 0.0077, 333),  # an odd window
        (16000, 40, 0.032, 0.010, 800),  # a window as long as the transform
    ],
)
def test_the_layer_is_the_plain_loop(rate, mels, window, hop, samples):
    x = _audio(2, samples)
    layer = LogMel(rate, mels, window, hop)
    found = layer(torch.from_numpy(x))
    assert found.shape == (2, 1, mels, layer.frames(samples))
    for row in range(2):
        np.testing.assert_allclose(found[row, 0].numpy(), _by_hand(x[row], rate, mels, window, hop), rtol=0, atol=1e-9)


def test_the_layer_is_librosas():
    librosa = pytest.importorskip("librosa")
    x = _audio(1, 16000)[0]
    options = {"n_fft": 512, "win_length": 400, "hop_length": 160, "window": "hamming", "pad_mode": "reflect"}
    power = librosa.feature.melspectrogram(y=x, sr=16000, n_mels=40, htk=True, norm=None, power=2.0, **options)
    found = LogMel(16000)(torch.from_numpy(x)[None].float())[0, 0].numpy()
    np.testing.assert_allclose(found, np.log(power + 1e-6), atol=1e-4)


def test_filters_rise_from_one_centre_to_the_next():
    """Half overlap: between the first and the last centre the weights at any frequency add up to one."""
    weight = mel_filters(16000, 257, 40, torch.zeros(1, dtype=torch.float64)).numpy().T
    hertz = np.linspace(0, 8000, 257)
    centre = 700 * (10 ** (2595 * np.log10(1 + 8000 / 700) * np.arange(1, 41) / 41 / 2595) - 1)
    inner = (hertz >= centre[0]) & (hertz <= centre[-1])
    np.testing.assert_allclose(weight.sum(0)[inner], 1.0, atol=1e-12)
    assert inner.sum() > 200 and weight.min() == 0.0 and weight.max() <= 1.0
    for k in range(40):
        peak = hertz[weight[k].argmax()]
        assert abs(peak - centre[k]) <= 8000 / 256


def test_a_tone_shows_in_its_own_filter():
    rate, hertz = 16000, 1000.0
    tone = torch.sin(2 * math.pi * hertz * torch.arange(rate) / rate)[None]
    mean_K = LogMel(rate)(tone)[0, 0].mean(-1)
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 42) / 2595) - 1)
    nearest = int(np.abs(edges[1:-1] - hertz).argmin())
    assert int(mean_K.argmax()) == nearest and float(mean_K.max() - mean_K.min()) > 5


def test_both_input_shapes_and_any_length_give_the_same_frames():
    layer = LogMel(16000)
    longest = torch.from_numpy(_audio(3, 48000)).float()
    x = longest[:, :32000]
    out = layer(x)
    assert out.shape == (3, 1, 40, 201)
    assert torch.equal(out, layer(x[:, None]))
    longer = layer(longest)
    assert longer.shape == (3, 1, 40, 301)
    torch.testing.assert_close(longer[..., :198], out[..., :198])  # away from the mirrored end


def test_silence_is_finite_and_loudness_only_adds():
    layer = LogMel(8000)
    silent = layer(torch.zeros(1, 4000))
    torch.testing.assert_close(silent, torch.full_like(silent, math.log(1e-6)))
    x = torch.from_numpy(_audio(1, 4000)).float()
    torch.testing.assert_close(layer(10 * x) - layer(x), torch.full_like(silent, math.log(100)), atol=0.02, rtol=0)


def test_half_precision_outside_does_not_reach_the_spectrum():
    x = torch.from_numpy(_audio(2, 4000)).float()
    layer = LogMel(8000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer(x)
    assert torch.equal(inside, layer(x))


class _Small(nn.Module):
    """A network of filterbanks with as little as an embedding needs."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=3)
        self.head = nn.Linear(4, width)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def test_a_network_behind_it_takes_raw_audio():
    net = _Small(6)
    whole = WithMel(LogMel(8000), net)
    x = torch.from_numpy(_audio(5, 4000)).float()[:, None]
    torch.testing.assert_close(whole(x), net(LogMel(8000)(x)))
    assert batch_coupled(whole) is None
    torch.testing.assert_close(whole(x)[2:3], whole(x[2:3]))  # a sample alone and among others
    assert {name for name, _ in whole.named_parameters()} == {f"net.{name}" for name, _ in net.named_parameters()}
    assert list(whole.buffers()) == [], "an engine holds parameters alone"


def test_fast_resnet_takes_recordings_of_any_length():
    """Two seconds in training, three in evaluation; the parameters are those of the network of spectrograms."""
    net = mel_resnet34((1, 4000), 8, rate=8000)
    plain = FastResNet34((1, 40, 51), 8)
    assert [p.shape for p in net.parameters()] == [p.shape for p in plain.parameters()]
    with torch.no_grad():
        for samples in (4000, 6000):
            x = torch.from_numpy(_audio(2, samples)).float()[:, None]
            torch.testing.assert_close(net(x), net.net(LogMel(8000)(x)))


def test_stacked_replicas_equal_one_after_another():
    whole = WithMel(LogMel(8000, 8), _Small(3)).double().to("meta")  # as the engine holds it
    names = [name for name, _ in whole.named_parameters()]
    rng = torch.Generator().manual_seed(0)
    stacked = {n: torch.randn(4, *p.shape, generator=rng, dtype=torch.float64) for n, p in whole.named_parameters()}
    x = torch.from_numpy(_audio(8, 900)).reshape(4, 2, 1, 900)
    together = vmap(lambda p, part: functional_call(whole, p, (part,)))(stacked, x)
    for m in range(4):
        alone = functional_call(whole, {n: stacked[n][m] for n in names}, (x[m],))
        torch.testing.assert_close(together[m], alone)


def test_it_exports_as_plain_operations():
    """No Fourier transform, no complex number: what an exporter to any runtime knows."""
    whole = WithMel(LogMel(8000), _Small(3)).eval()
    x = torch.from_numpy(_audio(2, 1600)).float()[:, None]
    program = torch.export.export(whole, (x,))
    torch.testing.assert_close(program.module()(x), whole(x))
    called = {str(node.target) for node in program.run_decompositions().graph.nodes if node.op == "call_function"}
    assert called and not [name for name in called if "fft" in name or "stft" in name or "complex" in name]


@pytest.mark.parametrize(
    "arguments, line",
    [
        ((8000, 200), "too many for windows of 200 samples"),
        ((8000, 0), "do not fit"),
        ((0,), "do not fit"),
        ((8000, 40, 0.025, 0.0), "hop 0.0 s do not fit"),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments, line):
    with pytest.raises(SelfsameError, match=line):
        LogMel(*arguments)


@pytest.mark.parametrize("shape", [(4000,), (2, 2, 4000), (2, 1, 1, 4000), (2, 100), (2, 0)])
def test_samples_that_are_not_audio_are_refused(shape):
    with pytest.raises(SelfsameError, match="needs audio"):
        LogMel(8000)(torch.zeros(shape))
