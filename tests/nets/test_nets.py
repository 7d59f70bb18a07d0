"""What every network promises: shapes, seeds, independence of samples, vmap."""

import pytest
import torch
from torch import nn

from selfsame.errors import SelfsameError
from selfsame.nets import NETS, batch_coupled, build, register

SMALL = ["lenet", "resnet8", "resnet20", "resnet18"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _images(number, *shape, dtype=torch.float64):
    return torch.randn(number, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("name", sorted(NETS))
def test_any_image_and_any_width(name):
    for shape, width in (((1, 8, 8), 5), ((3, 19, 12), 7)):
        net = build(name, shape, width)
        assert net(_images(2, *shape, dtype=torch.float32)).shape == (2, width)
        assert batch_coupled(net) is None


@pytest.mark.parametrize("name", SMALL)
def test_parameters_follow_the_seed_and_leave_the_callers_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(name, (1, 8, 8), 4, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = build(name, (1, 8, 8), 4, seed=3), build(name, (1, 8, 8), 4, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", SMALL)
def test_samples_do_not_influence_each_other(name):
    net = build(name, (1, 8, 8), 6).double()
    x = _images(4, 1, 8, 8)
    changed = x.clone()
    changed[1] = 100 * changed[1] + 3
    before, after = net(x), net(changed)
    others = [0, 2, 3]
    torch.testing.assert_close(before[others], after[others], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[1], after[1])


@pytest.mark.parametrize("name", SMALL)
def test_stacked_replicas_equal_one_client_after_another(name):
    nets = [build(name, (3, 8, 8), 4, seed=seed).double() for seed in range(2)]
    x_MB = torch.stack([_images(2, 3, 8, 8) * (client + 1) - client for client in range(2)])
    params, buffers = torch.func.stack_module_state(nets)

    def loss(params, buffers, x_B):
        return torch.func.functional_call(nets[0], (params, buffers), (x_B,)).square().sum()

    together = torch.func.vmap(torch.func.grad(loss))(params, buffers, x_MB)
    for client, net in enumerate(nets):
        net(x_MB[client]).square().sum().backward()
        for key, parameter in net.named_parameters():
            torch.testing.assert_close(together[key][client], parameter.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SMALL)
def test_channels_last_gives_the_same_embeddings(name):
    net = build(name, (3, 16, 12), 4).double()
    x = _images(2, 3, 16, 12)
    expected = net(x)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(x.to(memory_format=torch.channels_last)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name, shape, width, options, line",
    [
        ("vgg", (1, 8, 8), 4, {}, "unknown network 'vgg'.*lenet"),
        ("lenet", (1, 8, 8), 4, {"depth": 3}, "lenet: unknown option 'depth'.*bias, channels, groups"),
        ("lenet", (1, 8, 8), 4, {"channels": 3}, "channels must be a list of whole numbers"),
        ("lenet", (1, 8, 8), 4, {"channels": (3,)}, "lenet: channels must be two"),
        ("lenet", (1, 8, 8), 4, {"bias": 0}, "bias must be true or false"),
        ("lenet", (1, 8, 8), 4, {"groups": 0}, "lenet: groups must be at least 1"),
        ("lenet", (1, 3, 8), 4, {}, "lenet: images of 3x8 are too small, at least 4x4"),
        ("resnet8", (1, 3, 8), 4, {}, "resnet8: images of 3x8 are too small"),
        ("resnet18", (3, 7, 7), 4, {}, "resnet18: images of 7x7 are too small, at least 8x8"),
        ("resnet18", (64,), 4, {}, "needs images of shape"),
        ("lenet", (1, 8, 8), 0, {}, "width must be at least 1"),
    ],
)
def test_a_mistake_gets_one_line(name, shape, width, options, line):
    with pytest.raises(SelfsameError, match=line) as caught:
        build(name, shape, width, **options)
    assert "\n" not in str(caught.value)


class _Flat(nn.Module):
    def __init__(self, shape, width, scale=1):
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), width * scale)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr("selfsame.nets.NETS", dict(NETS))
    register("mine", _Flat)


def test_a_users_own_network_joins_in_one_line(registered):
    one, same = build("mine", (5,), 3, seed=1), build("mine", (5,), 3, seed=1)
    assert one(torch.zeros(2, 5)).shape == (2, 3)
    assert torch.equal(one.layer.weight, same.layer.weight)


@pytest.mark.parametrize(
    "factory, options, line",
    [
        (_Flat, {"scale": 2}, r"must give a tensor of shape \(2, 3\), got \(2, 6\)"),
        (_Flat, {"depth": 2}, "unexpected keyword argument 'depth'"),
        (lambda shape, width: None, {}, "must return an nn.Module, got NoneType"),
        (lambda shape, width: nn.Linear(4, width), {}, r"fails on samples of shape \(5,\)"),
    ],
)
def test_an_unfit_network_of_a_users_own_gets_one_line(registered, factory, options, line):
    register("mine", factory)
    with pytest.raises(SelfsameError, match=line):
        build("mine", (5,), 3, **options)


def test_built_in_names_are_not_replaced():
    with pytest.raises(SelfsameError, match="built in"):
        register("lenet", _Flat)


@pytest.mark.parametrize(
    "layer, kind",
    [
        (nn.BatchNorm1d(4), "BatchNorm1d"),
        (nn.BatchNorm3d(4), "BatchNorm3d"),
        (nn.SyncBatchNorm(4), "SyncBatchNorm"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "InstanceNorm2d"),
        (nn.Dropout(0.1), "Dropout"),
        (nn.Dropout2d(0.1), "Dropout2d"),
        (nn.AlphaDropout(0.1), "AlphaDropout"),
        (nn.RReLU(), "RReLU"),
        (nn.LSTM(4, 4, 2, dropout=0.5), "LSTM"),
        (nn.MultiheadAttention(4, 1, dropout=0.5), "MultiheadAttention"),
        (nn.FractionalMaxPool2d(2, output_size=2), "FractionalMaxPool2d"),
    ],
)
def test_layers_that_couple_or_are_random_are_named(layer, kind):
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), layer))
    assert batch_coupled(net) == f"1.1 ({kind})"
    assert batch_coupled(layer) == kind


@pytest.mark.parametrize(
    "layer",
    [
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.InstanceNorm2d(4),
        nn.Dropout(0.0),
        nn.LSTM(4, 4),
        nn.MultiheadAttention(4, 1),
    ],
)
def test_layers_that_leave_samples_alone_pass(layer):
    assert batch_coupled(nn.Sequential(layer)) is None


def test_resnets_start_as_asked():
    """He's normal over fan-out, or PyTorch's own uniform: for 3x3 from 64 to 64 channels, 2/576 against 1/(3*576)."""
    convs = {init: build("resnet18", (3, 32, 32), 8, init=init).blocks[0].conv1.weight for init in ("kaiming", "torch")}
    assert abs(convs["kaiming"].var().item() * 576 / 2 - 1) < 0.05
    assert abs(convs["torch"].var().item() * 3 * 576 - 1) < 0.05
    with pytest.raises(SelfsameError, match="init must be"):
        build("resnet8", (3, 32, 32), 8, init="zeros")
