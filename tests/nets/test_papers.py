"""The papers' networks against the papers: layer tables as arithmetic, stages, and layers recomputed with loops."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from selfsame.nets import build
from selfsame.nets.fastresnet import AttentivePooling, SpeechBlock, Squeeze
from selfsame.nets.mobilefacenet import Bottleneck


def _count(net):
    return sum(parameter.numel() for parameter in net.parameters())


def _draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _stages(net, stages, x):
    """The shapes (without the number of samples) that leave each of the stages."""
    shapes = []
    hooks = [stage.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:]))) for stage in stages]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return shapes


# FedUV, Table 2

FEDUV = {  # sample, kernels, what leaves each stage
    "feduv-mnist": ((4, 28, 28), (9,) * 5, [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2), (1024, 1, 1)]),
    "feduv-celeba": ((3, 64, 64), (9,) * 5, [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4), (1024, 1, 1)]),
    "feduv-voxceleb": ((1, 2**14), (15, 9, 7, 5, 3), [(64, 4096), (128, 512), (256, 64), (512, 8), (1024, 1)]),
}


@pytest.mark.parametrize("name", FEDUV)
def test_feduv_is_table_2(name):
    shape, kernels, stages = FEDUV[name]
    expected, before = 0, shape[0]
    for kernel, after in zip(kernels, (64, 128, 256, 512, 1024)):
        expected += kernel * before * after + after + 2 * after  # convolution and its bias, group norm
        before = after
    expected += 1024 * 127  # W of (4): no bias
    net = build(name, shape, 127)
    assert _count(net) == expected
    assert _stages(net, net.stages, torch.zeros(1, *shape)) == stages
    assert [[type(part).__name__[:4] for part in stage] for stage in net.stages] == [
        ["Conv", "ReLU", "MaxP", "Grou"]
    ] * 5
    assert all(stage[3].num_groups == 2 for stage in net.stages)


def test_feduv_takes_larger_samples():
    assert build("feduv-mnist", (1, 60, 28), 3).head.in_features == 1024 * 2


def test_a_voice_stage_is_convolution_relu_pooling_norm():
    net = build("feduv-voxceleb", (1, 2**14), 3).double()
    x = _draw(1, 1, 40)
    weight, bias = (net.stages[0][0].get_parameter(key).detach().numpy() for key in ("weight", "bias"))
    padded = np.pad(x[0, 0].numpy(), 7)
    y = np.stack([[padded[t : t + 15] @ weight[c, 0] + bias[c] for t in range(40)] for c in range(64)])
    y = np.maximum(y, 0).reshape(64, 10, 4).max(-1).reshape(2, -1)
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(net.stages[0](x)[0].detach().numpy(), y.reshape(64, 10), rtol=1e-9, atol=1e-9)


# Fast ResNet-34


def test_fast_resnet_has_the_known_size():
    expected, before = 49 * 16 + 2 * 16, 16
    for channels, blocks in ((16, 3), (32, 4), (64, 6), (128, 3)):
        for place in range(blocks):
            expected += 9 * before * channels + 9 * channels * channels + 4 * channels
            if place == 0 and before != channels:
                expected += before * channels + 2 * channels
            squeezed = channels // 8
            expected += channels * squeezed + squeezed + squeezed * channels + channels
            before = channels
    expected += 128 * 128 + 128 + 128  # self-attentive pooling
    net = build("fast-resnet34", (1, 40, 200), 512)
    assert _count(net) == expected + 128 * 512 + 512  # group norm has as many parameters as batch norm
    assert round(_count(net) / 1e6, 1) == 1.4
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(convolutions) == 33  # and the linear layer is the 34th


def test_fast_resnet_halves_the_bands_first_and_takes_any_length():
    net = build("fast-resnet34", (1, 40, 200), 5)
    for frames in (200, 61, 2):
        half, quarter = -(-frames // 2), -(-frames // 4)
        shapes = _stages(net, [net.conv, *net.stages, net.pool], torch.rand(1, 1, 40, frames))
        assert shapes == [
            (16, 20, frames),
            (16, 20, frames),
            (32, 10, half),
            (64, 5, quarter),
            (128, 5, quarter),
            (128,),
        ]


def test_every_mel_band_is_standardised_over_time():
    net = build("fast-resnet34", (1, 6, 9), 5).double()
    x = _draw(2, 1, 6, 9)
    bands = net.input_norm(x[:, 0])
    for sample in range(2):
        for band in range(6):
            row = x[sample, 0, band].tolist()
            mean = sum(row) / 9
            spread = math.sqrt(sum((value - mean) ** 2 for value in row) / 9 + 1e-5)
            assert bands[sample, band].tolist() == pytest.approx([(value - mean) / spread for value in row])
    shifted = x + _draw(2, 1, 6, 1, seed=1)  # a microphone's colour is a constant in each band
    torch.testing.assert_close(net(shifted), net(x), rtol=1e-9, atol=1e-9)
    assert not list(net.input_norm.parameters())


def test_attentive_pooling_weighs_frames():
    pool = AttentivePooling(3).double()
    x_TC = _draw(4, 3).tolist()
    weight, bias, context = pool.project.weight.tolist(), pool.project.bias.tolist(), pool.context.weight.tolist()[0]
    score_T = []
    for frame in x_TC:
        hidden = [math.tanh(sum(w * v for w, v in zip(row, frame)) + b) for row, b in zip(weight, bias)]
        score_T.append(math.exp(sum(c * h for c, h in zip(context, hidden))))
    expected = [sum(s * frame[c] for s, frame in zip(score_T, x_TC)) / sum(score_T) for c in range(3)]
    assert pool(torch.tensor([x_TC], dtype=torch.float64))[0].tolist() == pytest.approx(expected, rel=1e-12)


def test_squeeze_scales_channels():
    squeeze = Squeeze(16).double()
    x = _draw(1, 16, 2, 3)
    mean = [float(x[0, c].sum()) / 6 for c in range(16)]
    hidden = []
    for row, bias in zip(squeeze.down.weight.tolist(), squeeze.down.bias.tolist()):
        hidden.append(max(0.0, sum(w * m for w, m in zip(row, mean)) + bias))
    for c, (row, bias) in enumerate(zip(squeeze.up.weight.tolist(), squeeze.up.bias.tolist())):
        scale = 1 / (1 + math.exp(-sum(w * h for w, h in zip(row, hidden)) - bias))
        torch.testing.assert_close(squeeze(x)[0, c], x[0, c] * scale, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("after, stride", [(8, 1), (16, 2)])
def test_a_speech_block_squeezes_its_branch_and_not_its_shortcut(after, stride):
    block = SpeechBlock(8, after, stride, 4).double()
    x = _draw(1, 8, 6, 5)
    shortcut = block.shortcut(x).relu()
    assert block(x).shape == shortcut.shape and not torch.allclose(block(x), shortcut)
    nn.init.constant_(block.squeeze.up.bias, -1000.0)  # every scale becomes 0
    assert torch.equal(block(x), shortcut)


# MobileFaceNet


@pytest.mark.parametrize("size, whole", [(112, 7), (64, 4)])
def test_mobilefacenet_is_table_1(size, whole):
    """Convolutions, PReLU slopes and norm channels, added up from the table's rows (t, c, n, s)."""
    weights = 9 * 3 * 64 + 9 * 64
    slopes = norms = 64 + 64
    before = 64
    for t, c, n, _ in ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1)):
        for _ in range(n):
            inner = t * before
            weights += before * inner + 9 * inner + inner * c
            slopes += 2 * inner
            norms += 2 * inner + c
            before = c
    weights += 128 * 512 + whole**2 * 512
    slopes, norms = slopes + 512, norms + 512 + 512
    net = build("mobilefacenet", (3, size, size), 128)
    assert _count(net) == weights + slopes + 2 * norms + 128 * 512 + 128
    if size == 112:  # the published 0.99 million: norms folded into one bias a channel, as deployed
        assert round((weights + 128 * 512 + slopes + norms + 128) / 1e6, 2) == 0.99
    half = size // 2
    assert _stages(net, [*net.stem, *net.stages, net.last, net.whole], torch.zeros(1, 3, size, size)) == [
        (64, half, half),
        (64, half, half),
        (64, half // 2, half // 2),
        (128, half // 4, half // 4),
        (128, half // 4, half // 4),
        (128, whole, whole),
        (128, whole, whole),
        (512, whole, whole),
        (512, 1, 1),
    ]


def test_mobilefacenet_keeps_its_slopes_and_ends_linear():
    net = build("mobilefacenet", (3, 64, 64), 512)
    assert sum(isinstance(module, nn.PReLU) for module in net.modules()) == 2 + 2 * 15 + 1
    assert not any(isinstance(module, nn.ReLU) for module in net.modules())
    whole = net.whole[0]
    assert whole.groups == 512 and whole.kernel_size == (4, 4) and isinstance(net.whole[-1], nn.GroupNorm)


@pytest.mark.parametrize("after, stride, keeps", [(8, 1, True), (8, 2, False), (12, 1, False)])
def test_a_bottleneck_has_a_shortcut_where_the_shape_stays(after, stride, keeps):
    block = Bottleneck(8, after, 2, stride, 4).double()
    nn.init.zeros_(block.narrow[1].weight)  # what is left is the shortcut alone
    x = _draw(1, 8, 6, 6)
    y = block(x)
    assert y.shape == (1, after, 6 // stride, 6 // stride)
    assert torch.equal(y, x) if keeps else not y.any()


# TouchAuth


def test_touchauth_is_the_appendix():
    net = build("touchauth", (1, 30, 10), 64)
    assert (
        _count(net) == (10 * 64 + 64) + (64 * 128 + 128) + (128 * 256 + 256) + (256 * 256 + 256) + (14 * 256 + 1) * 64
    )
    convolutions = [net.conv1, net.conv2, net.conv3, net.conv4]
    assert _stages(net, convolutions, torch.zeros(1, 1, 30, 10)) == [
        (64, 30, 1),
        (128, 30, 1),
        (256, 14, 1),
        (256, 14, 1),
    ]


def test_touchauth_sees_each_event_alone_but_for_one_pooling():
    net = build("touchauth", (1, 6, 4), 5).double()
    x = _draw(1, 1, 6, 4)
    layers = {key: parameter.detach().numpy() for key, parameter in net.named_parameters()}

    def event(values, name):
        weight = layers[f"{name}.weight"]
        return np.maximum(weight.reshape(len(weight), -1) @ values + layers[f"{name}.bias"], 0)

    early = [event(event(row, "conv1"), "conv2") for row in x[0, 0].numpy()]
    pooled = [np.maximum.reduce(early[start : start + 3]) for start in (0, 2)]
    late = np.stack([event(event(values, "conv3"), "conv4") for values in pooled], axis=1)
    expected = layers["head.weight"] @ late.reshape(-1) + layers["head.bias"]
    np.testing.assert_allclose(net(x)[0].detach().numpy(), expected, rtol=1e-9)


# FedAwS, sparse vectors


def test_the_bag_has_the_papers_layers():
    net = build("embedding-bag", (2, 5), 512, features=300)
    assert _count(net) == 300 * 512 + (512 + 1) * 1024 + (1024 + 1) * 1024 + (1024 + 1) * 512
    assert not net.embedding.sparse


def test_the_bag_averages_weighed_embeddings():
    net = build("embedding-bag", (2, 4), 3, features=6).double()
    rows = [[(2, 0.5), (5, -1.0), (2, 0.25), (0, 0.0)], [(1, 2.0), (0, 0.0), (3, 0.0), (0, 0.0)]]
    table = net.embedding.weight.detach().numpy()
    for row in rows:
        bag = sum(value * table[index] for index, value in row) / sum(value != 0 for _, value in row)
        for layer in (net.hidden1, net.hidden2):
            bag = np.maximum(layer.weight.detach().numpy() @ bag + layer.bias.detach().numpy(), 0)
        expected = net.head.weight.detach().numpy() @ bag + net.head.bias.detach().numpy()
        x = torch.tensor(row, dtype=torch.float64).T[None]
        np.testing.assert_allclose(net(x)[0].detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_padding_and_unknown_features_change_nothing():
    net = build("embedding-bag", (2, 2), 3, features=6)
    x = torch.tensor([[[2.0, 5.0], [0.5, -1.0]]])
    for index in (0.0, 4.0, 6.0, 1e9, -1.0, float("nan")):
        value = 0.0 if index in (0.0, 4.0) else 3.0
        longer = torch.cat([x, torch.tensor([[[index], [value]]])], dim=-1)
        torch.testing.assert_close(net(longer), net(x))
    empty = net(torch.zeros(1, 2, 2))
    assert bool(empty.isfinite().all()) and not torch.allclose(empty, net(x))
