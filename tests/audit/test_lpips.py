"""LPIPS, PSNR and the best of several by chance, recomputed with plain loops."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from selfsame.audit.lpips import Lpips, best_of, psnr
from selfsame.errors import SelfsameError

WIDTHS = (3, 4, 5, 4, 3)
KERNELS, STRIDES, PADS = (11, 5, 3, 3, 3), (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)


def weights(seed=0):
    """Random numbers in the layout of the published file, with few channels."""
    draw, depth, found = np.random.default_rng(seed), 3, {}
    for place, (width, side) in enumerate(zip(WIDTHS, KERNELS)):
        found[f"conv{place}_weight"] = draw.normal(size=(width, depth, side, side)) / side
        found[f"conv{place}_bias"] = 0.3 * draw.normal(size=width)
        found[f"lin{place}_weight"] = draw.uniform(size=width)
        depth = width
    return {name: value.astype(np.float32) for name, value in found.items()}


def written(tmp_path, **changed):
    found = {name: value for name, value in {**weights(), **changed}.items() if value is not None}
    np.savez(tmp_path / "lpips.npz", **found)
    return tmp_path / "lpips.npz"


def convolved(x, kernel, bias, stride, pad):
    depth, height, width = x.shape
    side = kernel.shape[2]
    padded = np.zeros((depth, height + 2 * pad, width + 2 * pad))
    padded[:, pad : pad + height, pad : pad + width] = x
    rows, columns = ((length + 2 * pad - side) // stride + 1 for length in (height, width))
    out = np.zeros((len(kernel), rows, columns))
    for o in range(len(kernel)):
        for i in range(rows):
            for j in range(columns):
                patch = padded[:, i * stride : i * stride + side, j * stride : j * stride + side]
                out[o, i, j] = max(0.0, float((patch * kernel[o]).sum()) + bias[o])
    return out


def pooled(x):
    rows, columns = ((length - 3) // 2 + 1 for length in x.shape[1:])
    out = np.zeros((len(x), rows, columns))
    for i in range(rows):
        for j in range(columns):
            out[:, i, j] = x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2))
    return out


def layers(picture, found):
    """The five layers' features of pixels in 0 .. 1, in double precision."""
    x = np.array(picture, dtype=np.float64)
    for channel, (shift, scale) in enumerate(((-0.030, 0.458), (-0.088, 0.448), (-0.188, 0.450))):
        x[channel] = ((2 * x[channel] - 1) - shift) / scale
    seen = []
    for place in range(5):
        x = pooled(x) if place in (1, 2) else x
        kernel, bias = (found[f"conv{place}_{part}"].astype(np.float64) for part in ("weight", "bias"))
        x = convolved(x, kernel, bias, STRIDES[place], PADS[place])
        seen.append(x)
    return seen


def distance(a, b, found):
    total = 0.0
    for place, (one, other) in enumerate(zip(layers(a, found), layers(b, found))):
        lin, (width, rows, columns) = found[f"lin{place}_weight"], one.shape
        for i in range(rows):
            for j in range(columns):
                p, q = one[:, i, j], other[:, i, j]
                p, q = p / (math.sqrt(sum(p**2)) + 1e-10), q / (math.sqrt(sum(q**2)) + 1e-10)
                total += sum(float(lin[f]) * (p[f] - q[f]) ** 2 for f in range(width)) / (rows * columns)
    return total


def pictures(count, shape, seed):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("side", [(31, 31), (40, 35)])
def test_the_distance_by_plain_loops(tmp_path, side):
    judge, found = Lpips.read(written(tmp_path)), weights()
    a, b = pictures(2, (3, *side), 0), pictures(3, (3, *side), 1)
    expected = [[distance(x.numpy(), y.numpy(), found) for y in b] for x in a]
    assert min(map(min, expected)) > 0.01
    np.testing.assert_allclose(judge.to("cpu", torch.float64).distances(a, b).numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(judge.distances(a, b).numpy(), expected, rtol=1e-4)
    assert float(judge.distances(a, a).diagonal().abs().max()) < 1e-12


def test_grey_and_small_pictures(tmp_path):
    """A grey one has three equal channels; of one too small every pixel is a square."""
    judge = Lpips.read(written(tmp_path)).to("cpu", torch.float64)
    grey, large = pictures(2, (1, 8, 9), 2), torch.zeros(2, 3, 32, 36, dtype=torch.float64)
    for s in range(2):
        for i in range(32):
            for j in range(36):
                large[s, :, i, j] = grey[s, 0, i // 4, j // 4]
    assert torch.equal(judge.distances(grey[:1], grey[1:]), judge.distances(large[:1], large[1:]))
    assert float(judge.distances(grey[:1], grey[1:])) > 0.01


def test_a_side_by_plain_loops(tmp_path):
    """Each new pixel lies between four old ones, by where its middle lies."""
    plain, wide = (Lpips.read(written(tmp_path), side).to("cpu", torch.float64) for side in (0, 40))
    x, large = pictures(2, (3, 32, 35), 6), torch.zeros(2, 3, 40, 40, dtype=torch.float64)

    def between(place, length):
        at = min(max((place + 0.5) * length / 40 - 0.5, 0.0), length - 1.0)
        low = int(at)
        return low, min(low + 1, length - 1), at - low

    for i in range(40):
        for j in range(40):
            (up, down, v), (left, right, h) = between(i, 32), between(j, 35)
            above = (1 - h) * x[:, :, up, left] + h * x[:, :, up, right]
            below = (1 - h) * x[:, :, down, left] + h * x[:, :, down, right]
            large[:, :, i, j] = (1 - v) * above + v * below
    torch.testing.assert_close(wide.distances(x[:1], x[1:]), plain.distances(large[:1], large[1:]))
    assert abs(float(wide.distances(x[:1], x[1:]) - plain.distances(x[:1], x[1:]))) > 1e-3
    with pytest.raises(SelfsameError, match="side 31 or more, got 30"):
        Lpips.read(written(tmp_path), 30)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lin4_weight": None}, "no weights of LPIPS"),
        ({"conv1_weight": np.zeros((4, 2, 5, 5))}, r"layer 1 has the shapes \(4, 2, 5, 5\)"),
        ({"lin2_weight": np.zeros(4)}, "layer 2 has the shapes"),
        ({"conv3_bias": np.full(4, np.nan)}, "layer 3 holds numbers that are not finite"),
        ({"conv0_weight": np.array([{}])}, "no weights of LPIPS"),  # a pickle
    ],
)
def test_a_bad_file_is_named(tmp_path, changed, words):
    with pytest.raises(SelfsameError, match=f"lpips.npz: {words}"):
        Lpips.read(written(tmp_path, **changed))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 cut off", b"\x93NUMPY"])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "weights").write_bytes(content)
    with pytest.raises(SelfsameError, match="no such file" if content is None else "no weights of LPIPS"):
        Lpips.read(tmp_path / "weights")


def test_psnr_by_plain_loops():
    a, b = pictures(2, (3, 4, 5), 3), pictures(3, (3, 4, 5), 4)
    for s in range(2):
        for t in range(3):
            gaps = [(float(p) - float(q)) ** 2 for p, q in zip(a[s].flatten(), b[t].flatten())]
            assert float(psnr(a, b)[s, t]) == pytest.approx(10 * math.log10(1 / (sum(gaps) / len(gaps))))
    assert float(psnr(a[:1], a[:1])) == pytest.approx(100)  # as high as it goes


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_best_of_some_is_the_mean_over_all_ways_to_draw_them(count):
    value = pictures(2, (7,), 5)
    ways = list(combinations(range(7), count))
    expected = [sum(min(float(row[i]) for i in way) for way in ways) / len(ways) for row in value]
    assert best_of(value, count).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("count", [0, 8])
def test_more_than_there_are_cannot_be_drawn(count):
    with pytest.raises(SelfsameError, match="7 values"):
        best_of(torch.zeros(1, 7), count)
