"""Networks of a user's own: registered, or named by an import path; what does not fit gets one line."""

import sys
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from selfsame.errors import SelfsameError
from selfsame.nets import NETS, build, register
from selfsame.nets.own import imported_factory

MODULE = """
import torch
from torch import nn
import torch.nn.functional as F
from selfsame.errors import SelfsameError


class Flat(nn.Module):
    def __init__(self, shape, width, *, scale=1):
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), width * scale)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Drops(Flat):
    def forward(self, x):
        return F.dropout(super().forward(x))


class Rarely(Flat):
    def forward(self, x):
        return F.dropout(super().forward(x), 1e-6, self.training)


class Counts(Flat):
    def __init__(self, shape, width):
        super().__init__(shape, width)
        self.register_buffer("step", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.step += 1
        return super().forward(x) * self.step


class Steps(Flat):
    step = 0

    def forward(self, x):
        self.step += 1
        return super().forward(x) * self.step


class Modes(Flat):
    def forward(self, x):
        out = super().forward(x)
        return out if self.training else out.relu()


class Centres(Flat):
    def forward(self, x):
        return super().forward(x) - super().forward(x).mean(0)


class Fragile(Flat):
    def forward(self, x):
        return F.batch_norm(super().forward(x), None, None, training=True)


class Listed(Flat):
    def forward(self, x):
        return [super().forward(x)]


class Kept(Flat):
    def __init__(self, shape, width):
        super().__init__(shape, width)
        self.register_buffer("offset", torch.ones(1))


def batch_norm(shape, width):
    return nn.Sequential(Flat(shape, width), nn.BatchNorm1d(width))


def refuses(shape, width):
    raise SelfsameError("only squares, please")


def breaks(shape, width):
    raise ZeroDivisionError("two\\nlines")


def narrow(shape):
    return Flat(shape, 1)


def indices(shape, width):
    return nn.Sequential(Whole(), nn.Embedding(2, width), Mean())


class Whole(nn.Module):
    def forward(self, x):
        return x.long()


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


nothing = lambda shape, width: None
empty = lambda shape, width: nn.Flatten()
number = 3
"""


def _forget(*modules):
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory of its own, which is not on the path of Python."""
    for name, text in {
        "mine.py": MODULE,
        "broken.py": "1 / 0",
        "wrong.py": "def (",
        "leaves.py": "import sys; sys.exit('bye')",
        "needy.py": "import no_such_library_anywhere",
        "package/__init__.py": "",
        "package/mine.py": "from mine import Flat",
        "json.py": "raise RuntimeError('a file here must not hide a library')",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    mine = ("mine", "broken", "wrong", "leaves", "needy", "package", "package.mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr("selfsame.nets.NETS", dict(NETS))
    _forget(*mine)
    yield tmp_path
    _forget(*mine)


@pytest.mark.parametrize("name", ["mine:Flat", "package.mine:Flat"])
def test_a_network_is_named_by_its_import_path(here, name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (build(name, (5,), 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one(torch.zeros(2, 5)).shape == (2, 3)
    assert torch.equal(one.layer.weight, same.layer.weight) and not torch.equal(one.layer.weight, other.layer.weight)
    assert build("mine:Flat", (2, 3), 3, scale=1).layer.in_features == 6


def test_the_current_directory_comes_last_and_once(here):
    before = list(sys.path)
    assert imported_factory("json:JSONEncoder").__module__ == "json.encoder"
    imported_factory("mine:Flat")
    assert sys.path == [*before, str(here)]


def test_samples_that_are_indices_are_tried_with_indices(here):
    assert build("mine:indices", (5,), 3)(torch.ones(2, 5)).shape == (2, 3)


@pytest.mark.parametrize("way", ["imported", "registered"])
@pytest.mark.parametrize(
    "name, options, line",
    [
        ("Flat", {"scale": 2}, r"two samples must give a tensor of shape \(2, 3\), got \(2, 6\)"),
        ("Flat", {"depth": 2}, r"called as factory\(shape, width, \*\*options\), but .*'depth'"),
        ("narrow", {}, r"called as factory\(shape, width, \*\*options\), but too many positional arguments"),
        ("nothing", {}, "must return an nn.Module, got NoneType"),
        ("empty", {}, "has no parameters to train"),
        ("Listed", {}, r"must give a tensor of shape \(2, 3\), got list"),
        ("Kept", {}, "buffer 'offset' would be lost"),
        ("batch_norm", {}, r"layer 1 \(BatchNorm1d\) makes samples depend on one another"),
        ("Drops", {}, "draws at random in its forward pass, as dropout does in training"),
        ("Rarely", {}, "draws at random in its forward pass"),
        ("Counts", {}, "buffer 'step' would be lost"),
        ("Steps", {}, "or from call to call"),
        ("Modes", {}, r"gives something else in training than in eval\(\)"),
        ("Centres", {}, "changes with the other samples of its batch"),
        ("Fragile", {}, r"fails on samples of shape \(5,\): ValueError: Expected more than 1 value"),
        ("refuses", {}, "only squares, please$"),
        ("breaks", {}, r"fails to build for samples of shape \(5,\): ZeroDivisionError: two lines"),
    ],
)
def test_an_unfit_network_gets_one_line(here, way, name, options, line):
    path = f"mine:{name}"
    if way == "registered":
        factory, path = imported_factory(path), "own"
        register(path, factory)
    with pytest.raises(SelfsameError, match=f"^{path}: .*{line}") as caught:
        build(path, (5,), 3, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path, line",
    [
        ("absent:Net", "no module 'absent' in .* or among the installed packages"),
        ("package.absent:Net", "no module 'package.absent'"),
        ("absent.mine:Net", "no module 'absent'"),
        ("needy:Net", "importing needy fails: ModuleNotFoundError: No module named 'no_such_library_anywhere'"),
        ("broken:Net", "importing broken fails: ZeroDivisionError: division by zero"),
        ("wrong:Net", "importing wrong fails: SyntaxError: invalid syntax"),
        ("leaves:Net", "importing leaves fails: SystemExit: bye"),
        ("mine:Absent", "module 'mine' has no 'Absent'"),
        ("mine:number", r"must be callable as number\(shape, width, \*\*options\), got a int"),
        ("mine:", "written as package.module:Name"),
        ("mine.py:Flat.layer", "written as package.module:Name"),
        ("./mine:Flat", "written as package.module:Name"),
        (".mine:Flat", "written as package.module:Name"),
        ("mine:Flat:Flat", "written as package.module:Name"),
    ],
)
def test_a_path_that_leads_nowhere_gets_one_line(here, path, line):
    with pytest.raises(SelfsameError, match=line) as caught:
        build(path, (5,), 3)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@given(st.text() | st.from_regex(r"zz[\w.]{0,6}", fullmatch=True), st.text() | st.from_regex(r"\w+", fullmatch=True))
def test_no_text_is_taken_for_a_network(before, after):
    with pytest.raises(SelfsameError):
        imported_factory(f"{before}:{after}")


def test_an_unknown_name_says_how_to_give_an_own_network():
    with pytest.raises(SelfsameError, match=r"unknown network 'MyNet'.*package\.module:Name"):
        build("MyNet", (5,), 3)


def test_a_registered_network_joins_in_one_line(here):
    register("mine", lambda shape, width: nn.Sequential(nn.Flatten(), nn.Linear(5, width)))
    assert build("mine", (5,), 3)(torch.zeros(2, 5)).shape == (2, 3)
    with pytest.raises(SelfsameError, match=r"mine: fails on samples of shape \(6,\): RuntimeError"):
        build("mine", (6,), 3)
