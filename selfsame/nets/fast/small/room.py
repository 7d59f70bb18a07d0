"""Where the passes of a network keep their numbers: those of each image, and what a thread has for itself."""

from __future__ import annotations

from dataclasses import dataclass

from selfsame.nets.fast.small.trace import Conv, Image, Steps, Tail

CHUNK = 16  # images of one network whose linear layer is computed together
_LINE = 16  # numbers: everything begins at a new line of the cache


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
        self.packed = {number: self._own(taps * wide) for number, (taps, _, wide) in sizes.items()}
        self.sums = {number: self._own(taps * wide) for number, (taps, _, wide) in sizes.items()}
        self.standard = {number: self._own(taps * outs) for number, (taps, outs, _) in sizes.items()}
        self.biases = {number: self._own(wide) for number, (_, _, wide) in sizes.items()}
        self.bias_sums = {number: self._own(wide) for number, (_, _, wide) in sizes.items()}
        self.turned = {
            conv.out.number: self._own(conv.side**2 * conv.out.channels * self.up(conv.inside.channels))
            for conv in convs
        }
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
