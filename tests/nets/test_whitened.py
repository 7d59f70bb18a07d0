"""The layer of constants behind a network: what it computes, what learns beside it, and networks of any kind."""

import pytest
import torch
from torch import nn

from selfsame.engine.model import Model
from selfsame.errors import SelfsameError
from selfsame.nets import build
from selfsame.nets.learned import choose_learned
from selfsame.nets.whitened import LAYER, MATRIX, MEAN, with_whitening

X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def numbers(width):
    draw = torch.Generator().manual_seed(1)
    return {MEAN: torch.randn(width, generator=draw) / 9, MATRIX: torch.randn(width, width, generator=draw)}


def behind(emb_SD, mean, matrix):
    """Row by row."""
    out = []
    for row in emb_SD:
        moved = matrix.T @ (row / row.norm() - mean)
        out.append(moved / moved.norm())
    return torch.stack(out)


@pytest.mark.parametrize("train", [(), ("last",)])
def test_theta_is_that_of_the_network_without(train):
    plain = build("lenet", (1, 8, 8), 6, channels=(4, 4))
    net = build("lenet", (1, 8, 8), 6, channels=(4, 4), whitened=True)
    layer = numbers(6)
    with torch.no_grad():
        net.whitening_mean.copy_(layer[MEAN])
        net.whitening_matrix.copy_(layer[MATRIX])
        wanted = behind(plain(X), layer[MEAN], layer[MATRIX])
    model = Model(net, {}, learned=choose_learned(net, train, 0, (1, 8, 8)))
    without = Model(plain, {}, learned=choose_learned(plain, train, 0, (1, 8, 8)))
    assert model.layout == without.layout and torch.equal(model.first_theta, without.first_theta)
    assert set(model.constants) == {*without.constants, *LAYER}
    torch.testing.assert_close(model.embed_eager(model.first_theta, X), wanted)
    both = model.embed_each(torch.stack([model.first_theta] * 2), torch.stack([X, X]))
    torch.testing.assert_close(both, torch.stack([wanted] * 2))


def test_adapters_leave_the_layer_alone():
    net = build("lenet", (1, 8, 8), 6, channels=(4, 4), whitened=True)
    assert not any(name in LAYER for name in choose_learned(net, (), 2, (1, 8, 8)).ranks)


def test_a_sequence_of_layers_is_followed_once():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    plain = net(X).detach()
    with_whitening(net, 3)
    layer = numbers(3)
    with torch.no_grad():
        net.whitening_mean.copy_(layer[MEAN])
        net.whitening_matrix.copy_(layer[MATRIX])
        torch.testing.assert_close(net(X), behind(plain, layer[MEAN], layer[MATRIX]))
    with pytest.raises(SelfsameError, match="already"):
        with_whitening(net, 3)


def test_the_voice_encoder_without_its_last_relu():
    sound = torch.randn(3, 1, 34000, generator=torch.Generator().manual_seed(2)) / 20  # two parts
    plain, signed = (build("ge2e-voice", (1, 34000), 7, signed=one) for one in (False, True))
    heard = []
    signed.linear.register_forward_hook(lambda *given: heard.append(given[2]))
    with torch.no_grad():
        found, rectified = signed(sound), plain(sound)
    each_SPD = heard[0].unflatten(0, (3, -1))
    assert each_SPD.shape[1] == 2 and bool((found < 0).any()) and not bool((rectified < 0).any())
    for row_PD, out_D, positive_D in zip(each_SPD, found, rectified, strict=True):
        mean_D = sum(part / part.norm() for part in row_PD)
        torch.testing.assert_close(out_D, mean_D / mean_D.norm())
        mean_D = sum(part.clamp(min=0) / part.clamp(min=0).norm() for part in row_PD)
        torch.testing.assert_close(positive_D, mean_D / mean_D.norm())
