"""Where the passes of a network keep their numbers: those of each image, and what a thread has for itself."""

from __future__ import annotations

from dataclasses import dataclass

from selfsame.nets.fast.small.trace import Conv, Image, Steps, Tail

CHUNK = 32  # images of one network whose linear layer is computed together
SQUARE = 36  # points of a square: six along each side
_LINE = 16  # numbers: everything begins at a new line of the cache
_STRIP = 2**16  # numbers at the points that are worked on at a time: they stay in the cache
_LEAST = 8  # channels on both sides, below which going to the points and back costs more than it saves
_FEWEST = 9  # squares of an image: the kernels at the points are four times as large, and are read for each image


def by_points(conv: Conv) -> bool:
    """Whether a convolution is computed by six points (see winograd.py)."""
    return conv.stride == 1 and back_by_points(conv) and _squares(conv.out, conv.side) >= _FEWEST


def back_by_points(conv: Conv) -> bool:
    """Whether its derivatives in the input are: they are those of a convolution whose stride is 1.

    Nothing is where the samples come in, whose numbers may lie without being filled up to vectors.
    """
    if conv.inside.number == 0 or conv.side not in (3, 5):
        return False
    wide = min(conv.inside.channels, conv.out.channels) >= _LEAST
    return wide and _squares(conv.inside, conv.side) >= _FEWEST


def _squares(image: Image, side: int) -> int:
    to = squares_to(side)
    return -(-image.rows // to) * -(-image.columns // to)


def squares_to(side: int) -> int:
    """How many places to a side a square of the output has, for kernels of this side."""
    return 7 - side


def strip(step: int, wide: int) -> int:
    """How many squares are taken to the points together, with so many numbers a place on either side."""
    return max(8, _STRIP // (SQUARE * (step + wide)))


@dataclass(frozen=True)
class Lie:
    """How an image lies in memory: where its first place is, and how far it is to the next row and place."""

    at: int
    first: int
    row: int
    step: int
    size: int

    @property
    def origin(self) -> int:
        return self.at + self.first


class Room:
    """`saved` numbers of each image, `space` of each thread; where in them each thing begins, by its image's number."""

    def __init__(self, steps: Steps, lanes: int) -> None:
        self.first, self.lanes = steps.first.number, lanes
        self.saved = self.space = 0
        images = [steps.first, *(step.out for step in steps.steps)]
        makers = {step.out.number: step for step in steps.steps}
        convs = [step for step in steps.steps if isinstance(step, Conv)]
        tails = [step for step in steps.steps if isinstance(step, Tail)]
        # Where convolutions alone read the samples, these lie without being filled up to vectors.
        self.bare = all(tail.inside.number != self.first for tail in tails)

        self.values = {image.number: self._value(image) for image in images}
        self.terms = {tail.out.number: self._keep(4 * self.stride(tail.inside)) for tail in tails if tail.norm}
        self.features = self._keep(steps.features.count)

        self.pulls = {image.number: self._pull(image, makers.get(image.number)) for image in images}
        self.pulled = self._own(CHUNK * steps.features.count)
        sizes = {conv.out.number: (conv.taps, conv.out.channels, self.up(conv.out.channels)) for conv in convs}
        self.packed = {
            conv.out.number: self._own(
                (SQUARE * conv.inside.channels if by_points(conv) else conv.taps) * self.up(conv.out.channels)
            )
            for conv in convs
        }
        self.sums = {number: self._own(taps * wide) for number, (taps, _, wide) in sizes.items()}
        self.standard = {number: self._own(taps * outs) for number, (taps, outs, _) in sizes.items()}
        self.biases = {number: self._own(wide) for number, (_, _, wide) in sizes.items()}
        self.bias_sums = {number: self._own(wide) for number, (_, _, wide) in sizes.items()}
        self.turned = {
            conv.out.number: self._own(
                (SQUARE if back_by_points(conv) else conv.side**2) * conv.out.channels * self.up(conv.inside.channels)
            )
            for conv in convs
        }
        self.point_sums = {
            conv.out.number: self._own(SQUARE * conv.inside.channels * self.up(conv.out.channels))
            for conv in convs
            if by_points(conv)
        }
        widths = [(self.up(conv.inside.channels), self.up(conv.out.channels)) for conv in convs if back_by_points(conv)]
        room = max((SQUARE * strip(*wide) * max(wide) for wide in widths), default=0)
        self.lifted, self.landing = self._own(room), self._own(room)
        self.norm_sums = {tail.out.number: self._own(2 * self.stride(tail.inside)) for tail in tails if tail.norm}

    def up(self, channels: int) -> int:
        """So many channels, filled up to whole vectors."""
        return -(-channels // self.lanes) * self.lanes

    def stride(self, image: Image) -> int:
        """Floats from one place of an image to the next."""
        return image.channels if image.number == self.first and self.bare else self.up(image.channels)

    def _keep(self, count: int) -> int:
        at, self.saved = self.saved, self.saved + -(-count // _LINE) * _LINE
        return at

    def _own(self, count: int) -> int:
        at, self.space = self.space, self.space + -(-count // _LINE) * _LINE
        return at

    def _value(self, image: Image) -> Lie:
        step, border = self.stride(image), image.border
        row = (image.columns + 2 * border) * step
        size = (image.rows + 2 * border) * row
        return Lie(self._keep(size), border * (row + step), row, step, size)

    def _pull(self, image: Image, maker: Conv | Tail | None) -> Lie:
        """The derivatives in an image.

        Those in a convolution's output lie as its derivatives in the input read them: as far apart as it steps, with
        zeros between and around.
        """
        step = self.up(image.channels)
        if isinstance(maker, Conv) and maker.inside.number != self.first:
            before = maker.side - 1 - maker.padding
            row = (maker.inside.columns + maker.side - 1) * step
            size = (maker.inside.rows + maker.side - 1) * row
            return Lie(self._own(size), before * (row + step), maker.stride * row, maker.stride * step, size)
        row = image.columns * step
        return Lie(self._own(image.rows * row), 0, row, step, image.rows * row)
