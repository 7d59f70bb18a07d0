"""Ready encoders: the layers they are made of, by hand; published files, made up, read and refused."""

import hashlib
import io
import json
import math
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from selfsame.errors import SelfsameError
from selfsame.nets import build, crop, ge2e_voice, ready, resample
from selfsame.nets.dlib_face import DlibBlock
from selfsame.nets.ready import legacy_pt, published, shards

LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.mark.parametrize(("before", "after"), [(5, 12), (7, 7), (12, 5), (1, 4)])
def test_cubic_weights_by_hand(before, after):
    def cubic(x):
        x = abs(x)
        if x <= 1:
            return 1.25 * x**3 - 2.25 * x**2 + 1
        return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    table = crop.resize_table(before, after, LIKE)
    wide = max(1.0, before / after)
    for row in range(after):
        centre = (row + 0.5) * before / after - 0.5
        weights = [cubic((place - centre) / wide) for place in range(before)]
        wanted = torch.tensor([weight / sum(weights) for weight in weights], dtype=torch.float64)
        torch.testing.assert_close(table[row], wanted)


def test_the_middle_is_kept():
    x = torch.rand(2, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(crop.MiddleAt((3, 8, 10), 4, 4)(x), x[:, :, 2:6, 3:7])
    assert crop.MiddleAt((3, 8, 10), 0, 20)(x).shape == (2, 3, 20, 20)
    even = torch.full((1, 3, 8, 10), 0.3)
    torch.testing.assert_close(crop.MiddleAt((3, 8, 10), 6, 15)(even), torch.full((1, 3, 15, 15), 0.3))


@pytest.mark.parametrize(("eyes", "step"), [((3, 2, 7, 5), (4, 3)), ((3, 6, 9, 6), (6, 0))])
def test_eyes_come_to_lie_where_they_are_wanted(eyes, step):
    """By hand: the point of the picture that each new pixel shows, and the four pixels around it."""
    x = torch.rand(1, 2, 9, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted, size = (0.25, 0.4, 0.75, 0.4), 8
    got = crop.EyesAt((2, 9, 11), eyes, wanted, size)(x)
    assert got.shape == (1, 2, size, size)
    # From (1.5, 2.7) to (5.5, 2.7), a step of 4 to the right, became one of `step` right and down.
    for row in range(size):
        for column in range(size):
            along, across = (column - 1.5) / 4, (row - 2.7) / 4
            at_x = min(max(eyes[0] + step[0] * along - step[1] * across, 0), 10)
            at_y = min(max(eyes[1] + step[1] * along + step[0] * across, 0), 8)
            left, top = min(int(at_x), 9), min(int(at_y), 7)
            for channel in range(2):
                one = x[0, channel]
                want = sum(
                    float(one[top + down, left + right])
                    * (at_x - left if right else 1 - at_x + left)
                    * (at_y - top if down else 1 - at_y + top)
                    for down in (0, 1)
                    for right in (0, 1)
                )
                assert float(got[0, channel, row, column]) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize(
    "front",
    [
        crop.MiddleAt((3, 8, 10), 6, 15),
        crop.EyesAt((3, 8, 10), (2, 3, 7, 3), (0.25, 0.4, 0.75, 0.4), 12),
        crop.EyesAt((3, 8, 10), (2, 3, 7, 4), (0.25, 0.4, 0.75, 0.4), 12),
    ],
)
def test_channels_that_are_innermost_stay_so(front):
    x = torch.rand(2, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    plain, last = front(x), front(x.contiguous(memory_format=torch.channels_last))
    assert plain.is_contiguous() and last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, plain)


@pytest.mark.parametrize("eyes", [(3, 2, 3, 2), (3, 2, 11, 5), (3, 2, 7), (-1, 2, 7, 5)])
def test_eyes_that_are_none_get_one_line(eyes):
    with pytest.raises(SelfsameError, match="eyes must be two places"):
        build("dlib-face", (3, 9, 11), 4, eyes=eyes)
    with pytest.raises(SelfsameError, match="give one of them"):
        build("dlib-face", (3, 9, 11), 4, eyes=(3, 2, 7, 5), crop=5)


@pytest.mark.parametrize(
    "eyes, line",
    [
        ((7, 5, 3, 2), "the left one in the picture comes first"),  # the face would stand on its head
        ((3, 2, 3, 6), "the left one in the picture comes first"),  # or lie on its side
        ((0, 0, 1, 0), "in pixels of pictures of 11x9, not in shares of it"),
        ((0.3, 0.4, 0.7, 0.4), "expected a list of whole numbers"),
    ],
)
def test_eyes_that_are_swapped_or_no_pixels_get_one_line(eyes, line):
    with pytest.raises(SelfsameError, match=line):
        build("dlib-face", (3, 9, 11), 4, eyes=eyes)


def test_a_block_that_halves_fills_up_with_zeros():
    """Sides of 8: the convolution leaves 3, the average 4; the fourth row and column are the shortcut's alone."""
    block = DlibBlock(2, 4, True)
    x = torch.rand(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    y = block.conv2(block.conv1(x).relu()).detach()
    assert y.shape == (1, 4, 3, 3)
    out = block(x).detach()
    for channel in range(4):
        for row in range(4):
            for column in range(4):
                wanted = 0.0
                if channel < 2:
                    wanted += float(x[0, channel, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean())
                if row < 3 and column < 3:
                    wanted += float(y[0, channel, row, column])
                assert float(out[0, channel, row, column]) == pytest.approx(max(0.0, wanted), abs=1e-5)


@pytest.mark.parametrize("options", [{"crop": 8}, {"eyes": (2, 4, 6, 5)}], ids=["middle", "eyes"])
def test_a_mirrored_embedding_is_the_mean_over_both_pictures(options):
    x = torch.rand(3, 3, 12, 10, generator=torch.Generator().manual_seed(1))
    turned = {"eyes": (3, 5, 7, 4)} if "eyes" in options else options  # 9 - 6, 9 - 2: the eyes have changed places
    plain, other, both = (
        build("dlib-face", (3, 12, 10), 5, seed=2, size=103, **some).eval()
        for some in (options, turned, {**options, "mirror": True})
    )
    with torch.no_grad():
        wanted = torch.stack([plain(one[None])[0] / 2 + other(one[None].flip(3))[0] / 2 for one in x])
        assert torch.allclose(both(x), wanted, atol=1e-5)
        assert not torch.allclose(both(x), plain(x), atol=1e-3)
        if "crop" in options:  # of 12 pixels down and 10 across the middle is the same from either side
            assert torch.allclose(both(x.flip(3)), both(x), atol=1e-5)
    assert list(both.state_dict()) == list(plain.state_dict())


def test_grey_pictures_are_grey_in_three_channels():
    net = build("dlib-face", (1, 12, 12), 4, size=103)
    x = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(net(x), net(x.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(("before", "after"), [(8000, 16000), (44100, 16000), (48000, 16000), (16000, 16000)])
def test_a_tone_is_the_same_at_another_rate(before, after):
    count = before // 20
    layer = resample.Resampled(before, after)
    wave = torch.sin(2 * math.pi * 440 * torch.arange(count, dtype=torch.float64) / before)[None]
    out = layer(wave)
    assert out.shape == (1, layer.samples(count)) == (1, -(-count * after // before))
    wanted = torch.sin(2 * math.pi * 440 * torch.arange(out.shape[1], dtype=torch.float64) / after)
    middle = slice(out.shape[1] // 4, -out.shape[1] // 4)
    torch.testing.assert_close(out[0, middle], wanted[middle], rtol=0, atol=2e-3)


def test_what_the_lower_rate_cannot_hold_is_taken_off():
    wave = torch.sin(2 * math.pi * 12000 * torch.arange(4800, dtype=torch.float64) / 48000)[None]
    assert resample.Resampled(48000, 16000)(wave)[0, 100:-100].abs().max() < 0.01


def test_mel_bands_by_hand():
    """Slaney's scale: 200/3 Hz a mel up to 1,000 Hz, then 27 mel for every factor of 6.4; triangles of area 1."""

    def hertz(mel):
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    top = 15 + 27 * math.log(8) / math.log(6.4)
    edges = [hertz(top * place / 41) for place in range(42)]
    table = ge2e_voice.slaney_filters(16000, 201, 40, LIKE)
    for band in range(40):
        low, peak, high = edges[band : band + 3]
        for place in range(0, 201, 7):
            at = 40 * place
            height = min((at - low) / (peak - low), (high - at) / (high - peak))
            assert float(table[place, band]) == pytest.approx(max(0.0, height) * 2 / (high - low), abs=1e-9)


def test_frames_are_the_power_of_hann_windows():
    wave = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    front = ge2e_voice.VoiceFront(16000, 1000, False)
    got = front._bands(wave)
    assert got.shape == (1, 7, 40)
    frame = [wave[0, 160 * 3 - 200 + place].item() for place in range(400)]
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * place / 400) for place in range(400)]
    power = np.abs(np.fft.rfft(np.array(frame) * hann)) ** 2
    wanted = power @ ge2e_voice.slaney_filters(16000, 201, 40, LIKE).numpy()
    np.testing.assert_allclose(got[0, 3].numpy(), wanted, rtol=1e-8)


def test_quiet_recordings_are_made_louder():
    draw = torch.Generator().manual_seed(0)
    for count in (160, 700, 4001):
        wave = torch.randn(2, count, generator=draw, dtype=torch.float64) * torch.tensor([[0.001], [0.5]])
        quiet, loud = ge2e_voice._louder(wave)
        power = sum(float(one) ** 2 for one in wave[0]) / count
        torch.testing.assert_close(quiet, wave[0] * (10**-1.5 / math.sqrt(power)))
        assert torch.equal(loud, wave[1])
    assert torch.equal(ge2e_voice._louder(torch.zeros(1, 9)), torch.zeros(1, 9))


def test_silent_frames_are_left_out():
    frames = torch.tensor([[0.0, 0.0], [3.0, 1.0], [1e-6, 0.0], [0.0, 2.0], [1e-5, 0.0]])[None]
    wanted = torch.tensor([[3.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])[None]
    assert torch.equal(ge2e_voice.voiced_first(frames), wanted)
    assert torch.equal(ge2e_voice.voiced_first(torch.zeros(1, 4, 2)), torch.zeros(1, 4, 2))


@pytest.mark.parametrize(
    ("seconds", "starts"),
    [(0.5, [0]), (1.6, [0]), (1.9, [0]), (2.0, [0, 77]), (2.4, [0, 77]), (3.2, [0, 77, 154]), (4.0, [0, 77, 154, 231])],
)
def test_parts_of_a_recording(seconds, starts):
    """Each begins 0.77 s after the one before, and three quarters of its 1.6 s are there."""
    assert ge2e_voice.part_starts(round(16000 * seconds)) == starts
    assert all(start * 0.01 + 0.75 * 1.6 <= seconds + 1e-9 for start in starts[1:])


def test_parts_by_counting_their_samples():
    """A part at every 77th frame while three quarters of its 160 frames of 160 samples are there."""
    for samples in [*range(200, 90000, 997), 19200 + 77 * 160 - 1, 19200 + 77 * 160, 19200 + 154 * 160 - 1]:
        wanted, frame = [], 0
        while frame * 160 < samples:
            there = sum(160 for one in range(160) if (frame + one + 1) * 160 <= samples)
            there += samples % 160 if frame * 160 <= samples - samples % 160 < (frame + 160) * 160 else 0
            if frame == 0 or there >= 0.75 * 160 * 160:
                wanted.append(frame)
            frame += 77
        assert ge2e_voice.part_starts(samples) == wanted


def test_a_long_recording_is_the_mean_of_its_parts():
    net = build("ge2e-voice", (1, 40000), 16).double()
    x = 0.1 * torch.randn(2, 1, 40000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    part_NPTK = net.front(x)
    assert part_NPTK.shape == (2, 2, 160, 40)
    with torch.no_grad():
        each = [net.linear(net.lstm(part_NPTK[:, place])[0][:, -1]).relu() for place in range(2)]
        mean = sum(one / one.norm(dim=1, keepdim=True) for one in each) / 2
        torch.testing.assert_close(net(x), mean / mean.norm(dim=1, keepdim=True))


# Shards


def manifest(*weights, paths=("a.bin",)):
    return json.dumps([{"paths": list(paths), "weights": list(weights)}]).encode()


PLAIN = {"name": "w", "shape": [2, 2], "dtype": "float32"}
SMALL = {**PLAIN, "name": "q", "quantization": {"dtype": "uint8", "scale": 0.5, "min": -1.0}}


def test_tensors_lie_one_after_another_over_all_shards():
    data = np.array([1, -2, 3, 4], "<f4").tobytes() + bytes([0, 1, 2, 255])
    found = shards.read_shards(manifest(PLAIN, SMALL, paths=("a", "b")), {"a": data[:7], "b": data[7:]}.__getitem__)
    assert found["w"].tolist() == [[1, -2], [3, 4]]
    assert found["q"].tolist() == [[-1.0, -0.5], [0.0, 126.5]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff", "not JSON"),
        (b"[[[", "not JSON"),
        (b"{}", "expected a list, got a dict"),
        (b"[1]", "'paths' is missing"),
        (manifest(PLAIN, paths=("../a",)), "beside the manifest"),
        (manifest(PLAIN, paths=(3,)), "beside the manifest"),
        (manifest({**PLAIN, "shape": [2**40]}), "not a shape"),
        (manifest({**PLAIN, "shape": [-1]}), "not a shape"),
        (manifest({**PLAIN, "shape": [True]}), "not a shape"),
        (manifest({**PLAIN, "shape": [2**30, 2**30]}), "are left"),
        (manifest({**PLAIN, "dtype": "string"}), "expected float32"),
        (manifest(PLAIN, PLAIN), "no other has"),
        (manifest({**PLAIN, "shape": [1]}), "bytes are left behind"),
        (manifest({**SMALL, "quantization": {"dtype": "int4", "scale": 1, "min": 0}}), "uint8 or uint16"),
        (manifest({**SMALL, "quantization": {"dtype": "uint8", "scale": "1", "min": 0}}), "scale must be a number"),
        (
            manifest({**SMALL, "shape": [16], "quantization": {"dtype": "uint8", "scale": 1e300, "min": 0}}),
            "not finite",
        ),
    ],
)
def test_a_bad_manifest_gets_one_line(text, words):
    with pytest.raises(SelfsameError, match=words) as caught:
        shards.read_shards(text, lambda name: b"\x01" * 16)
    assert "\n" not in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_SHAPE = st.lists(st.integers(-1, 3) | st.just(2**62), max_size=3) | _JSON
_PACKED = st.fixed_dictionaries({"dtype": st.sampled_from(["uint8", "uint16", "x"]), "scale": _JSON, "min": _JSON})
_ENTRY = st.fixed_dictionaries(
    {"name": st.text(max_size=2), "shape": _SHAPE, "dtype": st.just("float32")},
    optional={"quantization": _PACKED | _JSON},
)
_GROUP = st.fixed_dictionaries(
    {"paths": st.lists(st.text(max_size=2), max_size=2), "weights": st.lists(_ENTRY | _JSON)}
)


@given(st.lists(_GROUP | _JSON, max_size=2) | _JSON, st.binary(max_size=40))
def test_any_manifest_gives_finite_tensors_of_its_shapes_or_one_line(groups, data):
    try:
        found = shards.read_shards(json.dumps(groups).encode(), lambda name: data)
    except SelfsameError as error:
        assert len(str(error).splitlines()) == 1
        return
    shapes = {entry["name"]: entry["shape"] for group in groups for entry in group["weights"]}
    assert {name: list(value.shape) for name, value in found.items()} == shapes
    assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in found.values())


# Files of PyTorch


def legacy(tensors):
    """The bytes of such a file, by PyTorch's own writer."""
    stream = io.BytesIO()
    torch.save({"step": 3, "model_state": tensors}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def test_tensors_of_an_old_file():
    tensors = nn.Linear(3, 2).state_dict()
    tensors["whole"] = tensors["weight"].flatten()[:4].clone()
    data = legacy(tensors)
    found = legacy_pt.read_legacy(data, "model_state")
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in tensors.items()}
    for wrong, words in (
        (data[:-1], "cut off"),
        (data + b"0", "left behind"),
        (b"", "not weights"),
        (data[3:], "not weights"),
        (legacy({"w": torch.ones(2, dtype=torch.float64)}), "expected FloatStorage"),
        (legacy({"w": torch.ones(2, 3).T}), "one piece"),
        (legacy({"w": torch.tensor([math.nan])}), "not finite"),
    ):
        with pytest.raises(SelfsameError, match=words):
            legacy_pt.read_legacy(wrong, "model_state")
    with pytest.raises(SelfsameError, match="it has no 'other'"):
        legacy_pt.read_legacy(data, "other")


@pytest.mark.parametrize("call", [b"cos\nsystem\n", b"cbuiltins\neval\n", b"ctorch\nload\n"])
def test_a_file_that_would_run_something(call):
    with pytest.raises(SelfsameError, match="it asks for"):
        legacy_pt.read_legacy(b"\x80\x02" + call + b"X\x02\x00\x00\x00ls\x85R.", "model_state")


@given(st.integers(0, 500), st.binary(min_size=1, max_size=3))
def test_a_damaged_file_gives_finite_tensors_or_one_line(place, bits):
    data = bytearray(legacy({"w": torch.ones(3)}))
    data[place : place + len(bits)] = bits
    try:
        found = legacy_pt.read_legacy(bytes(data), "model_state")
    except SelfsameError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(np.isfinite(value).all() for value in found.values())


# Converting


def voice_file(folder, tensors=None):
    net = build("ge2e-voice", (1, 32000), 256)
    tensors = net.state_dict() if tensors is None else tensors
    path = folder / "pretrained.pt"
    path.write_bytes(legacy({**tensors, "similarity_bias": torch.ones(1)}))
    files = {"resemblyzer/pretrained.pt": hashlib.sha256(path.read_bytes()).hexdigest()}
    with torch.no_grad():
        answer = tuple(ready.answer_of(net, (1, 32000))[:4].tolist())
    return path, replace(ready.READY["ge2e-voice"], files=files, answer=answer), net


def test_a_voice_file_is_converted_and_checked(tmp_path):
    path, encoder, net = voice_file(tmp_path)
    tensors = ready.converted(encoder, path)
    assert all(torch.equal(tensors[name], value) for name, value in net.state_dict().items())
    for _ in range(8):
        before = (tmp_path / "v.safetensors").read_bytes() if (tmp_path / "v.safetensors").exists() else None
        ready.save(encoder, tensors, tmp_path / "v.safetensors")
        assert before in (None, (tmp_path / "v.safetensors").read_bytes())  # one input, one file
    from safetensors import safe_open

    with safe_open(tmp_path / "v.safetensors", "pt") as file:
        assert file.metadata()["net"] == "ge2e-voice"
        assert set(file.keys()) == set(tensors)
    with pytest.raises(SelfsameError, match="away from the known one"):
        ready.converted(replace(encoder, answer=(0.9, 0.9)), path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(SelfsameError, match=r"pretrained\.pt is not that of PyPI Resemblyzer 0\.1\.4: its SHA-256 is"):
        ready.converted(encoder, path)


def test_weights_that_do_not_fit(tmp_path):
    path, encoder, _ = voice_file(tmp_path, {"lstm.other": torch.ones(2), "linear.bias": torch.ones(3)})
    with pytest.raises(
        SelfsameError, match=r"lacks: linear.weight.*more: lstm.other; shape: linear.bias \(3,\), not \(256"
    ):
        ready.converted(encoder, path)


def test_kernels_biases_and_names_of_the_face_encoder():
    """A manifest with the publisher's names; the network's answer is that of a convolution with a bias, then a gain."""
    generator = np.random.default_rng(0)
    net = build("dlib-face", (3, 103, 103), 128)
    entries, data, biases = [], b"", {}
    for name, module in (("conv32_down", net.stem), *_convs(net)):
        kernel = module.conv.weight.detach().numpy().transpose(2, 3, 1, 0)
        parts = {"conv/filters": kernel, "conv/bias": generator.normal(size=kernel.shape[3])}
        parts |= {
            "scale/weights": generator.normal(size=kernel.shape[3]),
            "scale/biases": generator.normal(size=kernel.shape[3]),
        }
        biases[name] = parts
        for part, value in parts.items():
            entries.append({"name": f"{name}/{part}", "shape": list(value.shape), "dtype": "float32"})
            data += np.ascontiguousarray(value, "<f4").tobytes()
    entries.append({"name": "fc", "shape": [256, 128], "dtype": "float32"})
    data += np.ascontiguousarray(net.head.weight.detach().numpy().T, "<f4").tobytes()
    text = manifest(*entries)
    files = {"face_recognition_model-weights_manifest.json": text, "a.bin": data}
    found = published.dlib_face(files.__getitem__)
    ready.filled(net, found)
    assert torch.equal(found["blocks.13.conv2.conv.weight"], net.blocks[13].conv2.conv.weight)
    last = biases["conv256_down_out/conv2"]
    x = torch.rand(1, 256, 3, 3, generator=torch.Generator().manual_seed(0))
    bare = torch.nn.functional.conv2d(
        x, net.blocks[13].conv2.conv.weight, torch.tensor(last["conv/bias"]).float(), padding=1
    )
    gain, shift = (torch.tensor(last[part]).float()[:, None, None] for part in ("scale/weights", "scale/biases"))
    torch.testing.assert_close(net.blocks[13].conv2(x), bare * gain + shift, rtol=1e-4, atol=1e-4)
    with pytest.raises(SelfsameError, match="fc: is missing"):
        published.dlib_face(
            {
                **files,
                "face_recognition_model-weights_manifest.json": manifest(*entries[:-1]),
                "a.bin": data[: -4 * 256 * 128],
            }.__getitem__
        )


def _convs(net):
    names = "conv32_1 conv32_2 conv32_3 conv64_down conv64_1 conv64_2 conv64_3 conv128_down conv128_1 conv128_2 "
    names += "conv256_down conv256_1 conv256_2 conv256_down_out"
    for name, block in zip(names.split(), net.blocks, strict=True):
        yield f"{name}/conv1", block.conv1
        yield f"{name}/conv2", block.conv2


def packed(path, member, data=b"x", kind=None):
    with tarfile.open(path, "w:gz") as package:
        info = tarfile.TarInfo(member)
        info.size = len(data)
        info.type = kind or tarfile.REGTYPE
        package.addfile(info, io.BytesIO(data))


def test_packages_that_are_not_what_they_should_be(tmp_path):
    first = next(iter(ready.READY["dlib-face"].files))
    packed(tmp_path / "a.tgz", "other")
    packed(tmp_path / "b.tgz", first, b"", tarfile.SYMTYPE)
    packed(tmp_path / "c.tgz", first)
    (tmp_path / "d.tgz").write_bytes(b"\x1f\x8bno")
    (tmp_path / "e.whl").write_bytes(b"PK no")
    (tmp_path / "f.json").write_bytes(b"[]")
    for file, words in (
        ("a.tgz", "has no package/model"),
        ("b.tgz", "not a plain file"),
        ("c.tgz", "has no package/model/face_recognition_model.bin"),
        ("d.tgz", "cannot be read"),
        ("e.whl", "cannot be read"),
        ("f.json", "no such file: face_recognition_model.bin"),
        ("none.tgz", "no such file"),
        (".", "not a file"),
    ):
        with pytest.raises(SelfsameError, match=words) as caught:
            ready.converted(ready.READY["dlib-face"], tmp_path / file)
        assert "\n" not in str(caught.value)
