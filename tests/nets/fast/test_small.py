"""Small networks as compiled C code, held to the module and autograd in float64, for three kinds of processor."""

from __future__ import annotations

import copy
import ctypes
import os
import stat
import time
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from selfsame import nets
from selfsame.engine.machine import Machine
from selfsame.engine.model import Layout, Model
from selfsame.nets.fast import Load, passes_for, small
from selfsame.nets.fast.small import SmallPasses, build, small_passes
from selfsame.nets.fast.small.emit import code
from selfsame.nets.fast.small.room import CHUNK, back_by_points, by_points
from selfsame.nets.fast.small.tiles import Processor, Tiles, heights, processor, split, starts
from selfsame.nets.fast.small.trace import Conv, Tail, traced
from selfsame.nets.lenet import LeNet
from selfsame.nets.mel import mel_lenet
from selfsame.nets.norm import StandardConv2d
from selfsame.nets.resnet import ResNet, resnet8

KINDS = {
    "vectors of 8": Processor(8, 28, 2, 64),
    "vectors of 4": Processor(4, 12, 2, 64),
    "vectors of 2": Processor(2, 20, 4, 64),
}
QUICK = tuple(flag.replace("-O3", "-Og") for flag in build.FLAGS)  # less than half of -O1's time


@pytest.fixture
def quickly(monkeypatch):
    """For tests of who compiles and of what is taken: the code may be slow."""
    monkeypatch.setattr(build, "FLAGS", QUICK)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """What these tests compile is not kept beyond them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def compiler():
    if not build.compiler():
        pytest.skip("there is no C compiler here")


class Mixed(nn.Module):
    """What the networks of the papers have not.

    A norm on the samples, a convolution behind a convolution, even kernels, pooling of three, a norm behind it that is
    used twice, and an image with three readers.
    """

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.front = nn.GroupNorm(1, shape[0], affine=False)
        self.one = nn.Conv2d(shape[0], 5, 4, stride=2, padding=1)
        self.two = nn.Conv2d(5, 6, 1, bias=False)
        self.norm = nn.GroupNorm(3, 6)
        self.left = StandardConv2d(6, 6, 3, padding=1, bias=True)
        self.right = nn.Conv2d(6, 6, 3, padding=1)
        self.last = nn.GroupNorm(2, 6)
        self.head = nn.Linear(6, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.max_pool2d(F.relu(self.two(self.one(self.front(x)))), 3))
        y = self.last(self.left(x)) + x
        z = F.leaky_relu(x + self.norm(self.right(F.leaky_relu(y, 0.2))), 0.1)
        return self.head(z.mean((2, 3)))


NETS = {
    "LeNet, by points": (partial(LeNet, channels=(8, 9)), (1, 13, 15)),  # squares of which half lies in the image
    "LeNet": (partial(LeNet, channels=(5, 6)), (1, 9, 11)),
    "LeNet in colour": (partial(LeNet, channels=(3, 20), groups=5, bias=False), (3, 12, 8)),
    "ResNet": (partial(resnet8, groups=2), (3, 9, 8)),
    "ResNet, standardised": (partial(resnet8, groups=4, standardise=True), (2, 8, 6)),
    "ResNet, projected": (partial(ResNet, 8, (1, 1), groups=4, project=True, init="torch"), (3, 7, 8)),
    "ResNet, by points": (partial(resnet8, groups=2, standardise=True), (3, 22, 19)),
    "mixed": (Mixed, (2, 25, 22)),
    "recordings": (partial(mel_lenet, rate=8000, mels=12, channels=(3, 4)), (1, 900)),
}
WIDTH = 5


def started(name: str) -> tuple[nn.Module, Layout, Tensor, tuple[int, ...]]:
    """A network in float64 whose norms are away from weight 1 and bias 0, and its theta."""
    make, shape = NETS[name]
    torch.manual_seed(3)
    net = make(shape=shape, width=WIDTH).double()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    named = dict(sorted(net.named_parameters(), key=lambda pair: pair[1].dim() < 2))
    layout = Layout.of({name: p.detach() for name, p in named.items()})
    return net, layout, layout.flatten(named), shape


def made(net: nn.Module, layout: Layout, shape: tuple[int, ...], kind: Processor) -> SmallPasses:
    shapes = dict(zip(layout.names, layout.shapes))
    steps = traced(net, shape)
    assert steps is not None
    with pytest.MonkeyPatch.context() as patch:  # vectors that a processor has not take its compiler minutes at -O3
        patch.setattr(build, "FLAGS", QUICK)
        found = build.library(code(steps, shapes, kind))
    assert found is not None
    return SmallPasses(steps, shape, shapes, torch.float64 if kind.bits == 64 else torch.float32, found)


def by_module(
    net: nn.Module, layout: Layout, theta_MP: Tensor, x_MB: Tensor, pull_MBD: Tensor
) -> tuple[Tensor, Tensor]:
    """Embeddings, and the derivatives in each theta, by autograd."""
    found = []
    for theta, x, pull in zip(theta_MP, x_MB, pull_MBD, strict=True):
        want = theta.clone().requires_grad_()
        out = functional_call(net, layout.views(want), (x,))
        found.append((out.detach(), torch.autograd.grad(out, want, pull)[0]))
    emb, grad = zip(*found, strict=True)
    return torch.stack(emb), torch.stack(grad)


def both_passes(passes: SmallPasses, theta_MP: Tensor, x_MB: Tensor, pull_MBD: Tensor) -> tuple[Tensor, Tensor]:
    emb, done = passes.forward(theta_MP, x_MB)
    (grad,) = passes.backward(done, pull_MBD)
    return emb, grad


def case(theta: Tensor, shape: tuple[int, ...], networks: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    theta_MP = theta + 0.05 * torch.randn(networks, len(theta), dtype=theta.dtype)
    x_MB = torch.randn(networks, count, *shape, dtype=theta.dtype)
    return theta_MP, x_MB, torch.randn(networks, count, WIDTH, dtype=theta.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETS)
def test_equals_the_module_and_autograd(name, kind):
    net, layout, theta, shape = started(name)
    passes = made(net, layout, shape, KINDS[kind])
    for networks, count in ((1, CHUNK + 3), (3, 2)):
        given = case(theta, shape, networks, count)
        emb, grad = both_passes(passes, *given)
        expected, expected_grad = by_module(net, layout, *given)
        assert torch.allclose(emb, expected, rtol=0, atol=1e-10)
        assert torch.allclose(grad, expected_grad, rtol=1e-7, atol=1e-9)
        assert (expected_grad != 0).double().mean() > 0.7  # a last image of 3x2 has kernels of which not all numbers do


@pytest.mark.parametrize("name", ["LeNet", "ResNet"])
def test_in_float32(name):
    net, layout, theta, shape = started(name)
    passes = small_passes(net, shape, dict(zip(layout.names, layout.shapes)))
    given = case(theta, shape, 2, 5)
    found = both_passes(passes, *(value.float() for value in given))
    for mine, expected in zip(found, by_module(net, layout, *given), strict=True):
        assert mine.dtype == torch.float32
        assert float((mine - expected).norm()) < 1e-4 * float(expected.norm())


def test_steps_are_taken_together():
    """A convolution, and all that follows up to the next one, where nobody else reads what lies between."""
    steps = traced(nets.build("lenet", (1, 28, 28), 8), (1, 28, 28))
    assert [type(step) for step in steps.steps] == [Conv, Tail, Conv, Tail]
    assert [(tail.pool, tail.slope, tail.norm.groups) for tail in steps.steps[1::2]] == [(2, 0.01, 2)] * 2
    assert steps.first.border == 2
    # 28 x 28 x 25 x 8, 14 x 14 x 25 x 8 x 4 and 7 x 7 x 4 x 8
    assert steps.work == 156_800 + 156_800 + 1_568


def points_of(name: str) -> list[tuple[bool, bool]]:
    """For each convolution whether it, and its derivatives in the input, are computed by points."""
    make, shape = NETS[name]
    steps = traced(make(shape=shape, width=WIDTH), shape)
    return [(by_points(step), back_by_points(step)) for step in steps.steps if isinstance(step, Conv)]


def test_which_convolutions_are_by_points():
    """Those that are wide and large enough; with a stride of two the derivatives in the input alone."""
    assert points_of("LeNet") == [(False, False)] * 2
    assert points_of("LeNet, by points") == [(False, False), (True, True)]
    by_stage = [(True, True)] * 2 + [(False, True), (True, True)] + [(False, True), (False, False)]
    assert points_of("ResNet, by points") == [(False, False), *by_stage]


def line_matrices(side: int, near: float = 0.5**0.5, far: float = 2**0.5) -> tuple[list[list[float]], ...]:
    """Those of the places of the output, of the taps and of the input, from the definition: products of polynomials.

    A line of the output is what a product of polynomials gives: its transpose. Both factors are taken to the points,
    and Lagrange's polynomials lead back.
    """
    points, to = [0.0, near, -near, far, -far], 7 - side
    output = [[x**i for i in range(to)] for x in points] + [[0.0] * (to - 1) + [1.0]]
    taps, lead = [], []
    for x in points:
        others = [y for y in points if y != x]
        apart, polynomial = 1.0, [1.0]
        for y in others:
            apart *= x - y
            polynomial = [a - y * b for a, b in zip([0.0, *polynomial], [*polynomial, 0.0])]
        taps.append([x**i / apart for i in range(side)])
        lead.append([*polynomial, 0.0])
    polynomial = [1.0]
    for y in points:
        polynomial = [a - y * b for a, b in zip([0.0, *polynomial], [*polynomial, 0.0])]
    return output, [*taps, [0.0] * (side - 1) + [1.0]], [*lead, polynomial]


@pytest.mark.parametrize("side", [3, 5])
def test_six_points_give_the_convolution(side):
    """The formula of winograd.h in plain loops, along a line, with exact numbers for the convolution itself."""
    output, taps, lead = line_matrices(side)
    kernel = [Fraction(3 * i - 4, 7) for i in range(side)]
    line = [Fraction(5 - 2 * i * i, 3) for i in range(6)]
    at = [
        sum(lead[q][i] * float(line[i]) for i in range(6)) * sum(taps[q][k] * float(kernel[k]) for k in range(side))
        for q in range(6)
    ]
    for place in range(7 - side):
        exact = sum(line[place + k] * kernel[k] for k in range(side))
        assert abs(sum(output[q][place] * at[q] for q in range(6)) - float(exact)) < 1e-12


def rounding(side: int, *points: float) -> float:
    """The float32 error of a convolution of 16 to 32 channels over squares, of the size of what comes out."""
    output, taps, lead = (torch.tensor(matrix, dtype=torch.float64) for matrix in line_matrices(side, *points))
    torch.manual_seed(5)
    x, kernels = torch.randn(200, 6, 6, 16).double(), torch.randn(side, side, 16, 32).double()

    def computed(dtype: torch.dtype) -> Tensor:
        a, g, b, d, w = (value.to(dtype) for value in (output, taps, lead, x, kernels))
        at = torch.einsum("pi,qj,tijc->tpqc", b, b, d), torch.einsum("pi,qj,ijco->pqco", g, g, w)
        return torch.einsum("pi,qj,tpqo->tijo", a, a, torch.einsum("tpqc,pqco->tpqo", *at))

    exact = computed(torch.float64)
    assert torch.allclose(
        exact.permute(0, 3, 1, 2), F.conv2d(x.permute(0, 3, 1, 2), kernels.permute(3, 2, 0, 1)), rtol=0, atol=1e-10
    )
    return float((computed(torch.float32) - exact).norm() / exact.norm())


@pytest.mark.parametrize("side", [3, 5])
def test_these_points_round_less_than_whole_ones(side):
    """docs/design/engines.md has the figures; here they have room for another processor's order of sums."""
    here, usual = rounding(side), rounding(side, 1.0, 2.0)
    assert 1e-7 < here < 1e-6 and usual > 1.5 * here


LINES = """
void lines(int side, const double *given, double *out) {
  vec d[6], g[5], y[4], t[6], back[6];
  for (int i = 0; i < 6; i++) d[i] = (vec){given[i]};
  for (int i = 0; i < 4; i++) y[i] = d[i];
  for (int i = 0; i < 5; i++) g[i] = d[i];
#define OUT(n) for (int i = 0; i < n; i++) *out++ = back[i][0]
  input_points(d[0], d[1], d[2], d[3], d[4], d[5], back, 1); OUT(6);
  for (int i = 0; i < 6; i++) t[i] = d[i];
  if (side == 5) {
    kernel_points(g, 1, 5, back, 1); OUT(6);
    kernel_taps(t, 1, 5, back, 1); OUT(5);
    output_places(t, 1, 2, back, 1); OUT(2);
    output_points(y, 1, 2, back, 1); OUT(6);
  } else {
    kernel_points(g, 1, 3, back, 1); OUT(6);
    kernel_taps(t, 1, 3, back, 1); OUT(3);
    output_places(t, 1, 4, back, 1); OUT(4);
    output_points(y, 1, 4, back, 1); OUT(6);
  }
}
"""


@pytest.mark.parametrize("side", [3, 5])
def test_each_way_to_the_points_and_back_is_its_matrix(side):
    """The five functions of winograd.h along a line, each against its matrix or that matrix turned round."""
    here = Path(small.__file__).parent
    heads = "#define REAL 64\n#define V 2\n#define WIDEST 128\n"
    text = heads + "".join((here / name).read_text() for name in ("parts.h", "winograd.h")) + LINES
    found = build.library(text)
    output, taps, lead = line_matrices(side)
    turned = [[[*row] for row in zip(*matrix)] for matrix in (output, taps)]
    given = torch.tensor([0.7, -1.3, 2.1, 0.4, -0.6, 1.9], dtype=torch.float64)
    want = [
        [sum(row[i] * float(given[i]) for i in range(len(row))) for row in matrix]
        for matrix in (lead, taps, turned[1], turned[0], output)
    ]
    flat = [value for part in want for value in part]
    out = torch.zeros(len(flat), dtype=torch.float64)
    found.lines(side, ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(out.data_ptr()))
    assert torch.allclose(out, torch.tensor(flat, dtype=torch.float64), rtol=0, atol=1e-12)


def test_by_points_float32_rounds_a_few_times_more():
    """Some five times more than without points, which is 6e-7 of what comes out of one convolution."""
    net, layout, theta, shape = started("LeNet, by points")
    passes = small_passes(net, shape, dict(zip(layout.names, layout.shapes)))
    given = case(theta, shape, 2, 5)
    found = both_passes(passes, *(value.float() for value in given))
    for mine, expected in zip(found, by_module(net, layout, *given), strict=True):
        assert float((mine - expected).norm()) < 1e-5 * float(expected.norm())


def test_several_threads_give_one_answer(monkeypatch):
    """However images are shared out, the sums are the same but for their order."""
    net, layout, theta, shape = started("LeNet, by points")
    passes = made(net, layout, shape, KINDS["vectors of 4"])
    monkeypatch.setattr(small, "_A_THREAD", 1)
    for networks, count in ((1, 7), (2, 3), (5, 1), (3, 40)):
        given = case(theta, shape, networks, count)
        expected = by_module(net, layout, *given)
        for threads in (1, 2, 3, 5, 64):
            monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
            for mine, other in zip(both_passes(passes, *given), expected, strict=True):
                assert torch.allclose(mine, other, rtol=1e-7, atol=1e-9)


def test_networks_that_are_one_row_of_memory():
    net, layout, theta, shape = started("LeNet")
    passes = made(net, layout, shape, KINDS["vectors of 4"])
    _, x_MB, pull_MBD = case(theta, shape, 3, 4)
    shared = both_passes(passes, theta.expand(3, -1), x_MB, pull_MBD)
    copied = both_passes(passes, theta.repeat(3, 1), x_MB, pull_MBD)
    assert all(torch.equal(one, other) for one, other in zip(shared, copied, strict=True))


def test_passes_that_overlap_keep_their_own_numbers():
    """The room of one forward pass goes to another only when its backward pass is no longer wanted."""
    net, layout, theta, shape = started("LeNet")
    passes = made(net, layout, shape, KINDS["vectors of 4"])
    first, second = (case(theta + shift, shape, 2, 3) for shift in (0.0, 0.1))
    (emb_a, a), (emb_b, b) = passes.forward(*first[:2]), passes.forward(*second[:2])
    assert torch.equal(passes.embed(*first[:2]), emb_a) and torch.equal(passes.embed(*second[:2]), emb_b)
    for _ in range(2):  # a backward pass may be asked for again
        for done, numbers in ((b, second), (a, first)):
            assert torch.allclose(passes.backward(done, numbers[2])[0], by_module(net, layout, *numbers)[1], atol=1e-9)
    kept = a.saved.data_ptr()
    del a, done
    assert passes.forward(*first[:2])[1].saved.data_ptr() == kept


@pytest.mark.parametrize("name", ["LeNet", "LeNet, by points"])
def test_what_is_not_finite_stays_with_its_network(name):
    """As in PyTorch: a client whose network or sample is broken is seen to be, and nobody else's is."""
    net, layout, theta, shape = started(name)
    passes = made(net, layout, shape, KINDS["vectors of 4"])
    theta_MP, x_MB, pull_MBD = case(theta, shape, 4, 3)
    clean = both_passes(passes, theta_MP, x_MB, pull_MBD)
    theta_MP[1, 7], x_MB[2, 1, 0, 4, 4] = torch.nan, torch.nan
    emb, grad = both_passes(passes, theta_MP, x_MB, pull_MBD)
    expected, expected_grad = by_module(net, layout, theta_MP, x_MB, pull_MBD)
    assert torch.equal(emb.isnan(), expected.isnan())
    assert emb[1].isnan().all() and emb[2, 1].isnan().all()
    for m in (1, 2):
        assert grad[m].isnan().any() and expected_grad[m].isnan().any()
    for m in (0, 3):
        assert torch.equal(emb[m], clean[0][m]) and torch.equal(grad[m], clean[1][m])


@pytest.mark.parametrize("name", ["LeNet", "mixed"])
def test_of_equal_numbers_the_first_is_pooled(name):
    """Images of one colour: whole windows are equal, and autograd pulls at their first place."""
    net, layout, theta, shape = started(name)
    passes = made(net, layout, shape, KINDS["vectors of 4"])
    theta_MP, x_MB, pull_MBD = case(theta, shape, 1, 2)
    given = (theta_MP, torch.ones_like(x_MB), pull_MBD)
    for mine, other in zip(both_passes(passes, *given), by_module(net, layout, *given), strict=True):
        assert torch.allclose(mine, other, rtol=1e-6, atol=1e-8)


def layers(*before: nn.Module, ins: int = 64) -> nn.Module:
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(ins, 3))


class Refusing(nn.Module):
    """A network of a user's own that looks at what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 1:
            raise ValueError("one channel, please")
        return self.inner(x).flatten(1)


class Twice(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.Conv2d(1, 1, 3, padding=1, bias=False)
        self.two.weight = self.one.weight
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)).flatten(1))


class Overwriting(nn.Module):
    """A sum of what is written over in between."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        return self.head((F.relu(y, inplace=True) + y).flatten(1))


def hooked() -> nn.Module:
    net = layers(nn.Conv2d(1, 1, 1))
    net[0].register_forward_hook(lambda module, given, out: 2 * out)
    return net


OTHERS = {
    "no convolution at all": (nn.Linear(8, 3), (8,)),
    "groups": (layers(nn.Conv2d(2, 2, 3, padding=1, groups=2), ins=128), (2, 8, 8)),
    "dilated": (layers(nn.Conv2d(1, 1, 3, padding=2, dilation=2)), (1, 8, 8)),
    "mirrored": (layers(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")), (1, 8, 8)),
    "oblong": (layers(nn.Conv2d(1, 1, (3, 1), padding=(1, 0))), (1, 8, 8)),
    "overlapping pools": (layers(nn.Conv2d(1, 1, 1), nn.MaxPool2d(3, 1, 1)), (1, 8, 8)),
    "rounded up": (layers(nn.Conv2d(1, 1, 1), nn.MaxPool2d(3, ceil_mode=True), ins=9), (1, 8, 8)),
    "falling": (layers(nn.Conv2d(1, 1, 1), nn.LeakyReLU(-0.1)), (1, 8, 8)),
    "another activation": (layers(nn.Conv2d(1, 1, 1), nn.Tanh()), (1, 8, 8)),
    "two layers": (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 3)), (1, 8, 8)),
    "nothing at the end": (nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), (1, 8, 8)),
    "wide": (layers(nn.Conv2d(1, 129, 8), ins=129), (1, 8, 8)),
    "looks at what it gets": (Refusing(), (1, 4, 4)),
    "shared": (Twice(), (1, 8, 8)),
    "written over": (Overwriting(), (1, 8, 8)),
    "hooked": (hooked(), (1, 8, 8)),
    "large": (nets.build("resnet18", (3, 32, 32), 8, place="meta"), (3, 32, 32)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_have_none(name):
    net, shape = OTHERS[name]
    shapes = {key: value.shape for key, value in net.named_parameters()}
    assert small_passes(net, shape, shapes) is None


@pytest.mark.parametrize("name", ["lenet", "resnet8", "resnet20", "resnet32", "resnet56"])
def test_our_small_networks_have_them(name):
    assert traced(nets.build(name, (3, 32, 32), 64, place="meta"), (3, 32, 32)) is not None


# When they are made


def load(samples: int | None) -> SmallPasses | None:
    net, layout, _, shape = started("LeNet")
    shapes = dict(zip(layout.names, layout.shapes))
    return passes_for(net, shapes, torch.device("cpu"), torch.float32, None, Load(shape, samples))


def test_short_trainings_do_without(quickly):
    steps = traced(*(started("LeNet")[i] for i in (0, 3)))
    enough = small._WORTH // (3 * steps.work)
    assert load(enough) is None and load(enough + 1) is not None and load(None) is not None


def test_without_a_compiler_the_module_is_used(monkeypatch):
    monkeypatch.setattr(small, "compiler", tuple)
    assert load(None) is None
    monkeypatch.undo()
    monkeypatch.setattr(build, "_ran", lambda command: None)  # it fails
    assert build.library("int nothing;") is None


def test_a_compiler_that_fails_is_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    assert build.macros()
    monkeypatch.setattr(build, "_ran", asked.append)
    assert build.library("int nothing;") is None and len(asked) == 1
    assert not list((tmp_path / "selfsame" / "passes").iterdir())


def test_a_compiler_that_takes_too_long_is_ended_with_what_it_started(tmp_path, monkeypatch):
    """gcc starts the compiler proper, which would go on for itself."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are not to be seen here")
    monkeypatch.setattr(build, "_LIMIT", 3.0)
    begun = tmp_path / "begun"
    assert build._ran(["sh", "-c", f"sleep 600 & echo $! > {begun}; wait"]) is None
    found = Path(f"/proc/{begun.read_text().strip()}/stat")

    def ended() -> bool:
        try:
            return found.read_text().rsplit(")")[-1].split()[0] == "Z"
        except OSError:
            return True

    for _ in range(300):  # it was told to, and takes its time
        if ended():
            break
        time.sleep(0.1)
    assert ended()


@pytest.mark.parametrize(("machine", "first"), [("x86_64", "-march=native"), ("aarch64", "-mcpu=native")])
def test_code_is_for_this_very_processor(machine, first, monkeypatch):
    asked = []
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.setattr(build, "_ran", lambda command: asked.append(command))
    assert build.compiler.__wrapped__() == ()
    ways = [command[1] for command in asked]
    assert ways[0] == first and len(ways) == 2


def test_the_command_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.compiler.__wrapped__() == ()


def test_compiled_once_and_for_nobody_else(quickly, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load(None) is not None
    folder = tmp_path / "selfsame" / "passes"
    (found,) = folder.iterdir()  # and nothing half-made beside it
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(build, "_compile", None)
    assert load(None) is not None
    assert list(folder.iterdir()) == [found]


def test_a_folder_that_others_may_write_to_is_left_alone(quickly, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "selfsame" / "passes"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert load(None) is not None
    assert not list(folder.iterdir())


def test_without_a_home_it_is_compiled_for_once(quickly, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert load(None) is not None


def test_processors_by_their_macros():
    assert processor("#define __AVX512F__ 1\n#define __AVX__ 1") == Processor(16, 28, 2)
    assert processor("#define __AVX__ 1", 64) == Processor(4, 12, 2, 64)
    assert processor("#define __aarch64__ 1") == Processor(4, 20, 4)
    assert processor("#define __SSE2__ 1") == Processor(4, 12, 2)


# How work is split


@given(st.integers(1, 300), st.integers(1, 40))
def test_parts_are_few_and_alike(count, most):
    parts = split(count, most)
    assert sum(parts) == count and max(parts) <= most and max(parts) - min(parts) <= 1
    assert len(parts) == -(-count // most)
    assert [at for at, _ in starts(parts)] == [sum(parts[:i]) for i in range(len(parts))]


@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from(list(KINDS)), st.integers(1, 4))
def test_every_place_lies_in_one_window(rows, columns, kind, wide):
    cpu = KINDS[kind]
    places = [
        (i + p, j + q)
        for i, j, tall, broad in Tiles(cpu, 1).windows(rows, columns, wide)
        for p in range(tall)
        for q in range(broad)
    ]
    assert sorted(places) == [(i, j) for i in range(rows) for j in range(columns)]
    assert all(tall * broad * wide <= cpu.sums for _, _, tall, broad in Tiles(cpu, 1).windows(rows, columns, wide))


@given(st.integers(1, 28), st.integers(1, 100))
def test_any_number_of_images_is_taken(most, images):
    left = images
    for height in heights(most):
        left %= height
    assert left == 0 and max(heights(most)) == most


def test_the_model_uses_them_where_nothing_is_asked_of_autograd(quickly):
    net, _, theta, shape = started("LeNet")
    model = Model(copy.deepcopy(net).float(), {}, load=Load(shape))
    plain = Model(copy.deepcopy(net).float(), {})
    assert model.passes is not None and plain.passes is None
    x = torch.randn(3, *shape)
    theta = model.first_theta
    assert torch.allclose(model.embed_eager(theta, x), plain.embed_eager(theta, x), atol=1e-4)
    assert model.embed_eager(theta.requires_grad_(), x).requires_grad
    jacobian = torch.func.vjp(lambda value: model.embed_eager(value, x), theta.detach())[1]
    assert torch.isfinite(jacobian(torch.ones(3, WIDTH))[0]).all()


def test_samples_of_another_kind_are_left_to_the_module(quickly):
    """The code reads memory as what it was made for; anything else must not come to it."""
    net, layout, theta, shape = started("ResNet")
    passes = small_passes(net, shape, dict(zip(layout.names, layout.shapes)), torch.float64)
    model, plain = (
        Model(copy.deepcopy(net), {}, Machine(dtype=torch.float64), load=load) for load in (Load(shape), None)
    )
    larger = torch.randn(2, shape[0], 12, 11, dtype=torch.float64)
    assert torch.allclose(model.embed_eager(theta, larger), plain.embed_eager(theta, larger), rtol=0, atol=1e-10)
    same = torch.randn(2, *shape, dtype=torch.float64)
    assert passes.takes(theta, same)
    for wrong in (larger, same.float(), same[:, :2]):
        assert not passes.takes(theta, wrong)
        with pytest.raises(ValueError, match="for passes of"):
            passes.forward(theta[None], wrong[None])
    with pytest.raises(ValueError, match="for passes of"):
        passes.forward(theta[None, :-1], same[None])
    with pytest.raises(ValueError, match="for passes of"):
        passes.forward(theta[None], same[None].expand(2, -1, -1, -1, -1))
    _, done = passes.forward(theta[None], same[None])
    with pytest.raises(ValueError, match="are not those"):
        passes.backward(done, torch.zeros(1, 1, WIDTH, dtype=torch.float64))
    assert passes.embed(theta[None], same[None, :0]).shape == (1, 0, WIDTH)


def test_nothing_is_written_beside_the_cache():
    assert Path(os.environ["XDG_CACHE_HOME"]).is_dir()
    assert not any(Path.cwd().glob("*.so"))
