"""A small network as a list of steps over images: convolutions, what follows each, and one linear layer at the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from selfsame.nets.mel import LogMel
from selfsame.nets.norm import StandardConv2d
from selfsame.nets.resnet import Thin

WIDEST = 128  # channels: beyond that PyTorch's own convolutions are as fast
_WINDOW = 4  # places to a side of a pooling
_LARGEST = 2**22  # parameters: each thread adds up their derivatives


class Unfit(Exception):
    """The network has something that no step here computes."""


@dataclass(frozen=True)
class Image:
    """What one step leaves for others: an image of so many rows, columns and channels, with zeros around it."""

    number: int
    rows: int
    columns: int
    channels: int
    border: int = 0

    @property
    def places(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Conv:
    """A convolution of square kernels (O, I, side, side); `standard`: they are standardised first."""

    inside: Image
    out: Image
    weight: str
    bias: str
    side: int
    stride: int
    padding: int
    standard: bool

    @property
    def taps(self) -> int:
        """Numbers of the input that meet in one of the output."""
        return self.inside.channels * self.side**2

    @property
    def work(self) -> int:
        """Multiplications for one image."""
        return self.out.places * self.out.channels * self.taps


@dataclass(frozen=True)
class GroupNorm:
    """Group norm; without names it has no parameters."""

    groups: int
    eps: float
    weight: str
    bias: str


@dataclass(frozen=True)
class Tail:
    """What may follow a convolution: norm, a sum with another image, an activation and max pooling, in that order.

    The activation is x above 0 and `slope` * x below. Where it does not fall, it may as well come after the pooling.
    """

    inside: Image
    out: Image
    norm: GroupNorm | None = None
    add: Image | None = None
    thin: int = 1  # of `add` every so many-th pixel is added, to the first channels
    slope: float = 1.0
    pool: int = 1


@dataclass(frozen=True)
class Features:
    """An image as one row of numbers: all of them, channel by channel, or the mean of each channel."""

    inside: Image
    mean: bool

    @property
    def count(self) -> int:
        return self.inside.channels * (1 if self.mean else self.inside.places)


@dataclass(frozen=True)
class Linear:
    """The layer from features to the embedding."""

    weight: str
    bias: str
    width: int


@dataclass(frozen=True)
class Steps:
    """A network: steps from the first image on, then its features, then one linear layer.

    `front`, without parameters, makes the first image of a sample.
    """

    front: nn.Module | None
    first: Image
    steps: list[Conv | Tail]
    features: Features
    linear: Linear

    @property
    def names(self) -> list[str]:
        """Of all tensors that are read."""
        parts: list[Conv | GroupNorm | Linear] = [self.linear]
        for step in self.steps:
            if isinstance(step, Conv):
                parts.append(step)
            elif step.norm is not None:
                parts.append(step.norm)
        return [name for part in parts for name in (part.weight, part.bias) if name]

    @property
    def work(self) -> int:
        """Multiplications for one image, forward."""
        convolutions = sum(step.work for step in self.steps if isinstance(step, Conv))
        return convolutions + self.features.count * self.linear.width


def traced(net: nn.Module, shape: tuple[int, ...]) -> Steps | None:
    """The steps of a network for images of this shape; None where it has others."""
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    if hooks or sum(value.numel() for value in net.parameters()) > _LARGEST:
        return None
    try:
        return _Walk(net, _Tracer().trace(net)).read(shape)
    except Exception:  # a network of a user's own may raise anything when it is called with something to trace
        return None


class _Tracer(fx.Tracer):
    """Stops at layers, and at what stands for one."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Thin | StandardConv2d | LogMel) or super().is_leaf_module(m, module_qualified_name)


@dataclass
class _Walk:
    """Goes through a traced network once, taking together what one step computes."""

    net: nn.Module
    graph: fx.Graph
    steps: list[Conv | Tail] = field(default_factory=list)
    images: dict[fx.Node, Image] = field(default_factory=dict)
    thinned: dict[fx.Node, tuple[fx.Node, int]] = field(default_factory=dict)
    renamed: set[int] = field(default_factory=set)  # images that have a second name, and so perhaps a second reader
    features: tuple[fx.Node, Features] | None = None
    linear: tuple[fx.Node, Linear] | None = None

    def read(self, shape: tuple[int, ...]) -> Steps:
        start, *middle, end = self.graph.nodes
        front = self.net.get_submodule(str(middle[0].target)) if middle[0].op == "call_module" else None
        if isinstance(front, LogMel):
            start = middle.pop(0)
            shape = tuple(front(torch.zeros(1, *shape)).shape[1:])
        else:
            front = None
        channels, rows, columns = shape
        first = self.images[start] = Image(0, rows, columns, channels)
        for node in middle:
            self._read(node)
        if self.features is None or self.linear is None or end.args[0] is not self.linear[0] or channels > WIDEST:
            raise Unfit
        return _with_borders(Steps(front, first, self.steps, self.features[1], self.linear[1]))

    def _new(self, rows: int, columns: int, channels: int) -> Image:
        if min(rows, columns) < 1 or channels > WIDEST:
            raise Unfit
        return Image(1 + max(image.number for image in self.images.values()), rows, columns, channels)

    def _read(self, node: fx.Node) -> None:
        if self.linear is not None or node.op not in ("call_module", "call_function", "call_method"):
            raise Unfit
        module = self.net.get_submodule(str(node.target)) if node.op == "call_module" else None
        name = str(node.target) if module is not None else ""
        call = getattr(node.target, "__name__", str(node.target)) if module is None else ""
        if module is not None and (len(node.args) != 1 or node.kwargs):
            raise Unfit
        source = node.args[0]
        if not isinstance(source, fx.Node):
            raise Unfit
        inplace = node.kwargs.get("inplace", False) or getattr(module, "inplace", False)
        if inplace and (len(source.users) > 1 or self._renamed(source)):
            raise Unfit  # somebody else reads what is written over
        match module:
            case nn.Identity():
                self._same(node, source)
            case nn.Conv2d():
                self._conv(node, module, name)
            case nn.GroupNorm():
                own = module.affine
                norm = GroupNorm(module.num_groups, module.eps, f"{name}.weight" * own, f"{name}.bias" * own)
                self._tail(node, source, norm=norm)
            case nn.ReLU():
                self._tail(node, source, slope=0.0)
            case nn.LeakyReLU():
                self._tail(node, source, slope=float(module.negative_slope))
            case nn.MaxPool2d():
                terms = (module.stride, module.padding, module.dilation, module.ceil_mode)
                self._pool(node, source, module.kernel_size, *terms)
            case Thin():
                if source not in self.images:
                    raise Unfit
                self.thinned[node] = (source, module.stride)
            case nn.Flatten():
                if (module.start_dim, module.end_dim) != (1, -1):
                    raise Unfit
                self._features(node, source, False)
            case nn.Linear():
                self._linear(node, source, module, name)
            case None:
                self._call(node, source, call)
            case _:
                raise Unfit

    def _call(self, node: fx.Node, source: fx.Node, call: str) -> None:
        """A function or a method, by its name."""
        rest, named = list(node.args[1:]), dict(node.kwargs)
        named.pop("inplace", None)
        if call == "relu" and not rest and not named:
            self._tail(node, source, slope=0.0)
        elif call == "leaky_relu" and len(rest) <= 1 and set(named) <= {"negative_slope"}:
            slope = rest[0] if rest else named.get("negative_slope", 0.01)
            self._tail(node, source, slope=_number(slope))
        elif node.target is F.max_pool2d:
            given = dict(zip(("kernel_size", "stride", "padding", "dilation", "ceil_mode"), rest)) | named
            if given.pop("return_indices", False):
                raise Unfit
            size = given.pop("kernel_size")
            terms = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **given}
            self._pool(node, source, size, **terms)
        elif call == "add" and len(rest) == 1 and not named and isinstance(rest[0], fx.Node):
            self._add(node, source, rest[0])
        elif call == "flatten" and (rest, named) in (([1], {}), ([], {"start_dim": 1})):
            self._features(node, source, False)
        elif call == "mean" and (rest, named) in (([(2, 3)], {}), ([[2, 3]], {}), ([], {"dim": (2, 3)})):
            self._features(node, source, True)
        else:
            raise Unfit

    def _renamed(self, node: fx.Node) -> bool:
        return node in self.images and self.images[node].number in self.renamed

    def _same(self, node: fx.Node, source: fx.Node) -> None:
        """Nothing is done: both are one image."""
        if source not in self.images:
            raise Unfit
        self.images[node] = self.images[source]
        self.renamed.add(self.images[source].number)

    def _conv(self, node: fx.Node, module: nn.Conv2d, name: str) -> None:
        source = self.images.get(node.args[0])  # type: ignore[arg-type]
        side, stride, padding = module.kernel_size, module.stride, module.padding
        square = side[0] == side[1] and stride[0] == stride[1] and not isinstance(padding, str)
        if source is None or not square or padding[0] != padding[1] or int(padding[0]) >= side[0]:
            raise Unfit
        if module.groups != 1 or module.dilation != (1, 1) or module.padding_mode != "zeros":
            raise Unfit
        if type(module) not in (nn.Conv2d, StandardConv2d):
            raise Unfit
        pad = int(padding[0])
        rows, columns = ((size + 2 * pad - side[0]) // stride[0] + 1 for size in (source.rows, source.columns))
        out = self._new(rows, columns, module.out_channels)
        bias = f"{name}.bias" if module.bias is not None else ""
        standard = isinstance(module, StandardConv2d)
        self.steps.append(Conv(source, out, f"{name}.weight", bias, side[0], stride[0], pad, standard))
        self.images[node] = out

    def _open(self, source: fx.Node) -> Tail:
        """The tail that more can be joined to: of what nobody else reads; or a new one."""
        if source not in self.images:
            raise Unfit
        image = self.images[source]
        before = self.steps[-1] if self.steps else None
        alone = len(source.users) == 1 and not self._renamed(source)
        if isinstance(before, Tail) and before.out == image and alone:
            self.steps.pop()
            return before
        return Tail(image, image)

    def _close(self, node: fx.Node, tail: Tail, rows: int, columns: int) -> None:
        out = self._new(rows, columns, tail.inside.channels)
        self.steps.append(replace(tail, out=out))
        self.images[node] = out

    def _tail(self, node: fx.Node, source: fx.Node, norm: GroupNorm | None = None, slope: float = 1.0) -> None:
        if slope < 0:
            raise Unfit
        tail = self._open(source)
        begun = tail.norm is not None or tail.add is not None or tail.pool > 1
        if tail.slope != 1.0 or (norm is not None and begun):
            tail = self._after(tail)
        tail = replace(tail, norm=norm) if norm is not None else replace(tail, slope=slope)
        self._close(node, tail, tail.out.rows, tail.out.columns)

    def _after(self, tail: Tail) -> Tail:
        """A new tail behind one that takes no more."""
        self.steps.append(tail)
        return Tail(tail.out, tail.out)

    def _pool(
        self, node: fx.Node, source: fx.Node, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
    ) -> None:
        side = _number(size)
        if _number(size if stride is None else stride) != side or _number(padding) or _number(dilation) != 1:
            raise Unfit
        if ceil_mode or not 1 <= side <= _WINDOW or side != int(side):
            raise Unfit
        tail = self._open(source)
        if tail.pool > 1 or tail.add is not None:
            tail = self._after(tail)
        side = int(side)
        self._close(node, replace(tail, pool=side), tail.out.rows // side, tail.out.columns // side)

    def _add(self, node: fx.Node, first: fx.Node, second: fx.Node) -> None:
        """The sum joins the tail that ends in one of the two, where that takes it."""
        before = self.steps[-1] if self.steps else None
        if not isinstance(before, Tail) or before.add is not None or before.slope != 1.0 or before.pool > 1:
            raise Unfit
        main, other = (first, second) if self.images.get(first) == before.out else (second, first)
        image = self.images.get(main)
        short, thin = self.thinned.get(other, (other, 1))
        added = self.images.get(short)
        if added is None or image != before.out or len(main.users) > 1 or self._renamed(main):
            raise Unfit
        sizes = [-(-size // thin) for size in (added.rows, added.columns)]
        grown = added.channels <= image.channels if other in self.thinned else added.channels == image.channels
        if sizes != [image.rows, image.columns] or not grown:
            raise Unfit
        self._close(node, replace(self._open(main), add=added, thin=thin), image.rows, image.columns)

    def _features(self, node: fx.Node, source: fx.Node, mean: bool) -> None:
        if source not in self.images or self.features is not None:
            raise Unfit
        self.features = node, Features(self.images[source], mean)

    def _linear(self, node: fx.Node, source: fx.Node, module: nn.Linear, name: str) -> None:
        if self.features is None or source is not self.features[0]:
            raise Unfit
        bias = f"{name}.bias" if module.bias is not None else ""
        self.linear = node, Linear(f"{name}.weight", bias, module.out_features)


def _number(value: Any) -> float:
    """A number that may be given once for each axis."""
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit
    return value


def _with_borders(steps: Steps) -> Steps:
    """The steps with zeros around every image, as many as the widest convolution of it reads beyond its edge."""
    border: dict[int, int] = {}
    for step in steps.steps:
        if isinstance(step, Conv):
            border[step.inside.number] = max(border.get(step.inside.number, 0), step.padding)

    def wide(image: Image) -> Image:
        return replace(image, border=border.get(image.number, 0))

    out: list[Conv | Tail] = []
    for step in steps.steps:
        if isinstance(step, Conv):
            out.append(replace(step, inside=wide(step.inside), out=wide(step.out)))
        else:
            add = None if step.add is None else wide(step.add)
            out.append(replace(step, inside=wide(step.inside), out=wide(step.out), add=add))
    features = replace(steps.features, inside=wide(steps.features.inside))
    return replace(steps, first=wide(steps.first), steps=out, features=features)
