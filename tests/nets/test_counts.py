"""Parameter counts against arithmetic written out here, and what the papers print."""

import pytest
import torch
from torch import nn

from selfsame.nets import build


def _count(net):
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    "shape, channels, width", [((1, 28, 28), (8, 4), 32), ((3, 32, 32), (8, 4), 16), ((1, 9, 14), (6, 10), 3)]
)
def test_lenet(shape, channels, width):
    convolutions = 25 * shape[0] * channels[0] + 25 * channels[0] * channels[1]
    flat = channels[1] * (shape[1] // 4) * (shape[2] // 4)
    assert _count(build("lenet", shape, width, channels=channels, bias=False)) == convolutions + flat * width
    additive = sum(channels) + width
    affine = 2 * sum(channels)
    net = build("lenet", shape, width, channels=list(channels))
    assert _count(net) == convolutions + flat * width + additive + affine


def test_lenet_without_bias_has_none_and_maps_zero_to_zero():
    net = build("lenet", (1, 12, 12), 5, bias=False)
    assert not any("bias" in name for name, _ in net.named_parameters())
    assert all(module.affine is False for module in net.modules() if isinstance(module, nn.GroupNorm))
    assert torch.equal(net(torch.zeros(2, 1, 12, 12)), torch.zeros(2, 5))
    assert not torch.equal(build("lenet", (1, 12, 12), 5)(torch.zeros(2, 1, 12, 12)), torch.zeros(2, 5))


@pytest.mark.parametrize("depth, millions", [(8, 0.08), (20, 0.27), (32, 0.46), (56, 0.85)])
def test_cifar_resnets_have_the_papers_size(depth, millions):
    expected, before = 9 * 3 * 16 + 2 * 16, 16
    for channels in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            expected += 9 * before * channels + 9 * channels * channels + 4 * channels
            before = channels
    expected += 64 * 10 + 10
    net = build(f"resnet{depth}", (3, 32, 32), 10)
    assert _count(net) == expected
    assert round(expected / 1e6, 2) == millions
    weighted = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == depth


@pytest.mark.parametrize("depth, blocks, millions", [(18, (2, 2, 2, 2), 11.17), (34, (3, 4, 6, 3), 21.28)])
def test_resnets_have_the_known_size(depth, blocks, millions):
    expected, before = 9 * 3 * 64 + 2 * 64, 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for place in range(blocks[stage]):
            expected += 9 * before * channels + 9 * channels * channels + 4 * channels
            if stage > 0 and place == 0:
                expected += before * channels + 2 * channels
            before = channels
    assert round(expected / 1e6, 2) == millions
    net = build(f"resnet{depth}", (3, 32, 32), 77)
    assert _count(net) == expected + 512 * 77 + 77
    norms = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert all(module.num_groups == 32 and bool((module.weight == 1).all()) for module in norms)


@pytest.mark.parametrize("depth, known", [(18, 11_689_512), (34, 21_797_672)])
def test_with_the_large_stem_resnets_have_the_published_size(depth, known):
    """For images of 224x224 and 1,000 classes; a norm has as many parameters in groups as over the batch."""
    assert _count(build(f"resnet{depth}", (3, 64, 64), 1000, stem="large")) == known


def test_the_large_stem_leaves_a_quarter_of_each_side():
    net, seen = build("resnet18", (3, 64, 48), 4, stem="large"), []
    net.blocks[0].register_forward_hook(lambda module, given, out: seen.append(given[0].shape))
    assert net(torch.rand(2, 3, 64, 48)).shape == (2, 4)
    assert seen == [(2, 64, 16, 12)]


def test_convolutions_start_with_the_fan_out_variance():
    net = build("resnet18", (3, 32, 32), 4)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert float(module.weight.detach().var()) == pytest.approx(2 / fan_out, rel=0.1)


@pytest.mark.parametrize("channels, groups, expected", [(8, 2, 2), (7, 2, 1), (6, 4, 3), (16, 32, 16), (12, 8, 6)])
def test_the_groups_are_the_largest_divisor_within_the_limit(channels, groups, expected):
    assert build("lenet", (1, 8, 8), 2, channels=(channels, 1), groups=groups).norm1.num_groups == expected


def test_the_cifar_shortcut_is_subsampling_with_zero_channels():
    net = build("resnet8", (3, 8, 8), 4)
    block = net.blocks[1]
    nn.init.zeros_(block.norm2.weight)  # what is left is the shortcut alone
    x = torch.rand(1, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2]) and y.shape == (1, 32, 4, 4) and not y[:, 16:].any()
