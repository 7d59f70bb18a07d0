"""Random changes of images against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from selfsame.config.recipe import AugmentPart
from selfsame.engine.augment import augment, rotate, shift_and_flip
from selfsame.errors import SelfsameError
from selfsame.streams import Stream

ALL = AugmentPart(crop=2, flip=True, rotation=30.0)


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1


def moved(image: Tensor, down: int, right: int, flip: bool) -> Tensor:
    """Crop of the zero-padded image at (down, right), then mirrored."""
    C, H, W = image.shape
    out = torch.zeros_like(image)
    for c in range(C):
        for i in range(H):
            for j in range(W):
                if 0 <= i + down < H and 0 <= j + right < W:
                    out[c, i, j] = image[c, i + down, j + right]
    return out.flip(2) if flip else out


def test_shift_and_flip():
    x = images(40, 2, 5, 7)
    draw = torch.Generator().manual_seed(2)
    down, right = (torch.randint(-6, 7, (40,), generator=draw) for _ in range(2))
    flip = torch.rand(40, generator=draw) < 0.5
    result = shift_and_flip(x, down, right, flip)
    for s in range(40):
        assert torch.equal(result[s], moved(x[s], int(down[s]), int(right[s]), bool(flip[s])))


def test_rotation():
    x = images(3, 2, 6, 6)
    assert torch.allclose(rotate(x, torch.zeros(3)), x, atol=1e-12)
    quarter = torch.full((3,), math.pi / 2, dtype=torch.float64)
    up, back = rotate(x, quarter), rotate(x, -quarter)
    assert torch.allclose(up, torch.rot90(x, 1, (2, 3)), atol=1e-12)
    assert torch.allclose(back, torch.rot90(x, -1, (2, 3)), atol=1e-12)
    assert torch.allclose(rotate(x, 2 * quarter), x.flip(2, 3), atol=1e-12)
    one = rotate(x, torch.tensor([0.3, 1.2, -2.0], dtype=torch.float64))
    for s, angle in enumerate([0.3, 1.2, -2.0]):  # each image by its own angle
        assert torch.equal(one[s], rotate(x[s : s + 1], torch.tensor([angle], dtype=torch.float64))[0])


def test_draws_do_not_depend_on_the_cohort():
    client_M, x = torch.tensor([5, 2, 9]), images(3, 4, 1, 6, 6)
    together = augment(x, ALL, Stream.named(0, "augment", client_M, 3))
    for row, client in enumerate(client_M.tolist()):
        alone = augment(x[row : row + 1], ALL, Stream.named(0, "augment", torch.tensor([client]), 3))
        assert torch.equal(together[row], alone[0])
        fewer = augment(x[row : row + 1, :2], ALL, Stream.named(0, "augment", torch.tensor([client]), 3))
        assert torch.equal(together[row, :2], fewer[0])  # a client with fewer samples than the longest batch


def test_each_sample_has_its_own_draw():
    x = images(1, 1, 1, 8, 8).expand(4, 6, 1, 8, 8)
    result = augment(x, ALL, Stream.named(0, "augment", torch.arange(4), 0)).flatten(0, 1)
    different = {tuple(image.flatten().tolist()) for image in result}
    assert len(different) == 24


def test_what_may_happen_happens_and_nothing_else():
    x = images(1, 1, 2, 4, 5).expand(100, 10, 2, 4, 5)
    result = augment(x, AugmentPart(crop=1, flip=True), Stream.named(0, "augment", torch.arange(100), 0))
    cases = {
        (down, right, flip): moved(x[0, 0], down, right, flip)
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
        for flip in (False, True)
    }
    tally = dict.fromkeys(cases, 0)
    for image in result.flatten(0, 1):
        (found,) = [case for case, expected in cases.items() if torch.equal(image, expected)]
        tally[found] += 1
    expected = 1000 / len(cases)
    assert all(abs(n - expected) < 5 * expected**0.5 for n in tally.values()), tally


def test_rotation_stays_within_its_limit():
    """A dot off the centre moves by no more than the angle allows, to either side."""
    x = torch.zeros(200, 1, 1, 21, 21, dtype=torch.float64)
    x[..., 10, 18] = 1
    result = augment(x, AugmentPart(rotation=20.0), Stream.named(0, "augment", torch.arange(200), 0))[:, 0, 0]
    place = torch.arange(21, dtype=torch.float64) - 10
    total = result.sum((1, 2))
    row = (result.sum(2) * place).sum(1) / total
    angle = torch.rad2deg(torch.atan2(row, (result.sum(1) * place).sum(1) / total))
    assert angle.abs().max() < 21 and angle.max() > 15 and angle.min() < -15


def test_off_and_refused():
    flat = torch.zeros(2, 3, 7)
    stream = Stream.named(0, "augment", torch.arange(2), 0)
    assert augment(flat, AugmentPart(), stream) is flat
    with pytest.raises(SelfsameError, match=r"augment: needs images, got samples of shape \(7,\)"):
        augment(flat, AugmentPart(flip=True), stream)
