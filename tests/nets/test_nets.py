"""What every network promises: shapes, seeds, independence of samples, one vector of parameters, vmap."""

import pytest
import torch
from torch import nn

from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.errors import SelfsameError
from selfsame.nets import NETS, batch_coupled, build, feduv_nets, register

IMAGES = ["lenet", *(name for name in NETS if name.startswith("resnet"))]
SMALLEST = {  # the smallest samples that leave every parameter something to do
    "lenet": (1, 8, 8),
    "resnet8": (3, 8, 8),
    "resnet20": (3, 8, 8),
    "resnet18": (3, 8, 8),
    "mobilefacenet": (3, 17, 33),
    "feduv-mnist": (4, 28, 28),
    "feduv-celeba": (3, 64, 64),
    "feduv-voxceleb": (1, 16384),
    "fast-resnet34": (1, 9, 7),
    "fast-resnet34-mel": (1, 1600),
    "lenet-mel": (1, 1600),
    "touchauth": (1, 6, 4),
    "embedding-bag": (2, 5),
    "mlp": (5,),
    "dlib-face": (3, 9, 12),
    "ge2e-voice": (1, 400),
}
HEAVY = ("resnet18", "dlib-face")  # drawing their parameters takes longest
LIGHT = [name for name in SMALLEST if name not in HEAVY]
OPTIONS = {"embedding-bag": {"features": 7}, "dlib-face": {"size": 103}, "ge2e-voice": {"rate": 8000}}
SMALL = ["lenet", "resnet8", "resnet20", "mobilefacenet"]


def _images(number, *shape, dtype=torch.float64):
    return torch.randn(number, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def _net(name, width=4, seed=0):
    return build(name, SMALLEST[name], width, seed, **OPTIONS.get(name, {}))


def _samples(name, number, dtype=torch.float64):
    x = _images(number, *SMALLEST[name], dtype=dtype)
    if name == "embedding-bag":
        x[:, 0] = (100 * x[:, 0]).round() % 7
    return x


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """FedUV's networks with fewer channels, an eighth: bfloat16 is slow on a CPU. test_papers counts the whole ones."""
    monkeypatch.setattr(feduv_nets, "_CHANNELS", (8, 16, 32, 64, 128))


def test_no_network_is_left_out():
    depths_alone = {"resnet32", "resnet34", "resnet56"}  # as resnet20 and resnet18 but for the number of blocks
    assert set(SMALLEST) | depths_alone == set(NETS)


@pytest.mark.parametrize("name", LIGHT)
def test_any_number_of_samples_and_any_width(name):
    for number, width in ((1, 1), (3, 7)):
        net = _net(name, width)
        assert net(_samples(name, number, torch.float32)).shape == (number, width)
        assert batch_coupled(net) is None
        assert next(net.buffers(), None) is None  # theta holds parameters alone


@pytest.mark.parametrize("name", IMAGES)
def test_any_image_and_any_width(name):
    for shape, width in (((1, 8, 8), 5), ((3, 19, 12), 7)):
        net = build(name, shape, width)
        assert net(_images(2, *shape, dtype=torch.float32)).shape == (2, width)
        assert batch_coupled(net) is None


@pytest.mark.parametrize("name", LIGHT)
def test_parameters_follow_the_seed_and_leave_the_callers_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = _net(name, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = _net(name, seed=3), _net(name, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", SMALLEST)
def test_samples_do_not_influence_each_other(name):
    net = _net(name, 6).double()
    x = _samples(name, 3)
    changed = x.clone()
    changed[1] = changed[1].flip(-1).square()  # not a mere rescaling: the speech network undoes those
    with torch.no_grad():
        before, after, alone = net(x), net(changed), net(x[2:])
    others = [0, 2]
    torch.testing.assert_close(before[others], after[others], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(before[2:], alone, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[1], after[1])


@pytest.mark.parametrize("name", SMALLEST)
def test_every_parameter_has_a_gradient(name):
    net = _net(name, 16).double()
    # Weighed, since embeddings of unit length have squares that add up to 1 whatever the parameters are.
    net(_samples(name, 2)).square().mul(torch.linspace(1, 2, 16)).sum().backward()
    assert [key for key, p in net.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-9] == []


@pytest.mark.parametrize("name", LIGHT)
def test_stacked_replicas_equal_one_client_after_another(name):
    """As the engine does it: a flat theta a client, vmap over the stack, embeddings and gradients in float64."""
    models = [Model(_net(name, seed=seed).double(), {}, Machine(dtype=torch.float64)) for seed in range(2)]
    model, theta_MP = models[0], torch.stack([model.first_theta for model in models])
    x_MB = _samples(name, 2)[:, None]

    def loss(theta_P, x_B):
        emb_BD = model.embed_eager(theta_P, x_B)
        return emb_BD.square().sum(), emb_BD

    grad_MP, emb_MBD = torch.func.vmap(torch.func.grad(loss, has_aux=True))(theta_MP, x_MB)
    for client in range(2):
        net = _net(name, seed=client).double()
        emb_BD = net(x_MB[client])
        torch.testing.assert_close(emb_MBD[client], emb_BD, rtol=1e-9, atol=1e-9)
        emb_BD.square().sum().backward()
        for key, grad in model.net_views(grad_MP[client]).items():
            torch.testing.assert_close(grad, net.get_parameter(key).grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LIGHT)
def test_bfloat16_autocast_is_near_float32(name):
    x = _samples(name, 1, torch.float32)
    exact, rough = (Model(_net(name, 16), {}, Machine(autocast=kind)) for kind in (None, torch.bfloat16))
    with torch.no_grad():
        wanted, got = exact.embed_eager(exact.first_theta, x), rough.embed_eager(rough.first_theta, x)
    # Recurrent layers stay in single precision on a CPU: not every processor has them in a lower one.
    assert got.dtype == torch.float32 and torch.equal(got, wanted) == (name == "ge2e-voice")
    assert (got - wanted).norm() < 0.2 * wanted.norm()


@pytest.mark.parametrize("name", SMALL)
def test_channels_last_gives_the_same_embeddings(name):
    net = build(name, (3, 16, 18), 4).double()
    x = _images(2, 3, 16, 18)
    expected = net(x)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(x.to(memory_format=torch.channels_last)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name, shape, width, options, line",
    [
        ("vgg", (1, 8, 8), 4, {}, "unknown network 'vgg'.*lenet"),
        ("lenet", (1, 8, 8), 4, {"depth": 3}, "lenet: unknown option 'depth'.*bias, channels, groups"),
        ("lenet", (1, 8, 8), 4, {"channels": 3}, "channels: expected a list of whole numbers"),
        ("lenet", (1, 8, 8), 4, {"channels": (3,)}, "lenet: channels must be two"),
        ("lenet", (1, 8, 8), 4, {"bias": 0}, "bias: expected true or false"),
        ("lenet", (1, 8, 8), 4, {"groups": 0}, "lenet: groups must be at least 1"),
        ("lenet", (1, 3, 8), 4, {}, "lenet: images of 3x8 are too small, at least 4x4"),
        ("resnet8", (1, 3, 8), 4, {}, "resnet8: images of 3x8 are too small"),
        ("resnet18", (3, 7, 7), 4, {}, "resnet18: images of 7x7 are too small, at least 8x8"),
        ("resnet18", (3, 32, 31), 4, {"stem": "large"}, "resnet18: images of 32x31 are too small, at least 32x32"),
        ("resnet34", (3, 32, 32), 4, {"stem": "7x7"}, "resnet34: stem must be 'small' or 'large', got '7x7'"),
        ("resnet18", (64,), 4, {}, "needs images of shape"),
        ("mobilefacenet", (3, 64, 15), 4, {}, "mobilefacenet: images of 64x15 are too small, at least 16x16"),
        ("mobilefacenet", (3, 64, 64), 4, {"groups": -1}, "mobilefacenet: groups must be at least 1"),
        ("feduv-mnist", (4, 27, 28), 4, {}, "feduv-mnist: images of 27x28 are too small, at least 28x28"),
        ("feduv-celeba", (3, 64, 63), 4, {}, "feduv-celeba: images of 64x63 are too small, at least 64x64"),
        ("feduv-voxceleb", (1, 16383), 4, {}, "recordings of 16383 are too small, at least 16384"),
        ("feduv-voxceleb", (1, 1, 16384), 4, {}, r"needs recordings of shape \(channels, samples\), got \(1, 1, 16384"),
        ("fast-resnet34", (40, 200), 4, {}, r"needs spectrograms of shape \(1, mels, frames\), got \(40, 200\)"),
        ("fast-resnet34", (2, 40, 200), 4, {}, r"fast-resnet34: needs spectrograms of shape \(1, mels, at least 2"),
        ("fast-resnet34", (1, 40, 1), 4, {}, "at least 2 frames"),
        ("touchauth", (30, 10), 4, {}, r"needs touches of shape \(channels, events, features\)"),
        ("touchauth", (1, 2, 10), 4, {}, "touchauth: a sample of 2 events is too short, at least 3"),
        ("touchauth", (1, 30, 0), 4, {}, "needs touches of shape"),
        ("embedding-bag", (3, 5), 4, {"features": 9}, r"expected shape \(2, L\), got \(3, 5\)"),
        ("embedding-bag", (2, 5, 1), 4, {"features": 9}, r"needs sparse rows of shape \(2, length\)"),
        ("embedding-bag", (2, 5), 4, {}, "option features must be the size of the vocabulary.*got 0"),
        ("embedding-bag", (2, 5), 4, {"features": 2**24 + 1}, "from 1 to 16777216"),
        ("embedding-bag", (2, 5), 4, {"features": "all"}, "features: expected a whole number"),
        ("dlib-face", (2, 8, 8), 4, {}, "dlib-face: pictures have 1 or 3 channels, got 2"),
        ("dlib-face", (3, 8, 9), 4, {"crop": 9}, r"crop must be from 0 \(all\) to 8"),
        ("dlib-face", (3, 8, 9), 4, {"size": 102}, "dlib-face: size must be at least 103"),
        ("ge2e-voice", (2, 9000), 4, {}, "ge2e-voice: recordings have 1 channel, got 2"),
        ("ge2e-voice", (1, 100), 4, {"rate": 8000}, "recordings of 100 samples are too short, more than 200"),
        ("ge2e-voice", (1, 9000), 4, {"rate": 0}, "rate must be at least 1, got 0"),
        ("lenet", (1, 8, 8), 0, {}, "width must be at least 1"),
    ],
)
def test_a_mistake_gets_one_line(name, shape, width, options, line):
    with pytest.raises(SelfsameError, match=line) as caught:
        build(name, shape, width, **options)
    assert "\n" not in str(caught.value)


def test_built_in_names_are_not_replaced():
    with pytest.raises(SelfsameError, match="built in"):
        register("lenet", nn.Flatten)


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


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_blocks_may_start_as_their_shortcuts(name):
    net = build(name, (3, 16, 16), 8, zero_last=True)
    x = torch.rand(2, 3, 16, 16)
    kept = net.norm(net.conv(x)).relu()
    for block in net.blocks:
        before, kept = kept, block(kept)
        assert torch.equal(kept, block.shortcut(before).relu())
    assert not torch.equal(build(name, (3, 16, 16), 8)(x), net(x))


def test_standardised_kernels_by_hand():
    """Each output channel's kernel with mean 0 and variance 1, and nothing else changed."""
    torch.manual_seed(0)
    net, plain = (build("resnet8", (3, 16, 16), 8, standardise=one).double() for one in (True, False))
    convs = {n: m for n, m in net.named_modules() if isinstance(m, nn.Conv2d)}
    values = {}
    for key, value in net.state_dict().items():
        values[key] = value.clone()
        if key.removesuffix(".weight") in convs:
            for channel in range(len(value)):
                numbers = value[channel].flatten().tolist()
                mean = sum(numbers) / len(numbers)
                variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
                values[key][channel] = (value[channel] - mean) / (variance + 1e-10) ** 0.5
    assert len(convs) == 7
    plain.load_state_dict(values)
    x = torch.rand(2, 3, 16, 16).double()
    assert torch.allclose(net(x), plain(x), rtol=0, atol=1e-10)
    with torch.no_grad():  # neither its length nor its mean is the kernel's own
        for module in convs.values():
            module.weight.mul_(3.0).add_(0.5)
    assert torch.allclose(net(x), plain(x), rtol=0, atol=1e-5)
