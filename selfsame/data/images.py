"""From labelled images in a training and a test part to a federation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.data.federation import Federation, Rows, Samples, from_classes
from selfsame.errors import SelfsameError

_BLOCK, _VALUES = 4096, 1 << 20  # images, or values, at a time, so that the float64 copy stays small


@dataclass(frozen=True)
class ClassOptions:
    """The options of all sets of labelled images."""

    held_out: int = 0  # the last classes, which are unseen
    clients_per_class: int = 1  # clients that share the samples of one class
    standardise: bool = True  # or leave values as they are, from 0 to 1


def federate(
    name: str,
    train: Samples,
    test: Samples,
    options: ClassOptions,
    *,
    classes: int,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **more: tuple[str, ...],
) -> Federation:
    """Classes 0 .. classes-1 of which the last `held_out` are unseen: only their test samples are kept.

    Without `mean` and `std` they are measured on the training samples of the seen classes. Without `standardise` values
    stay from 0 to 1: black is 0 then, which a network without biases maps to 0. `more`: notes and class_names.
    """
    check_held_out(name, options.held_out, classes)
    seen = classes - options.held_out
    held, _ = _divide(train, seen)
    per_class = torch.bincount(held.y, minlength=seen)
    if int(per_class.min()) == 0:
        raise SelfsameError(f"{name}: no training samples of class {int(per_class.argmin())}; is the file complete?")
    known, unseen = _divide(test, seen)
    if len(known.y) == 0:
        raise SelfsameError(f"{name}: no test samples of the seen classes; is the test file complete?")
    x = held.x[:]
    if not options.standardise:
        mean, std = (0.0,) * x.shape[1], (1.0,) * x.shape[1]
    elif mean is None or std is None:
        mean, std = moments(name, x)
    return from_classes(
        name,
        x,
        held.y,
        test=known,
        unseen=unseen,
        clients_per_class=options.clients_per_class,
        mean=mean,
        std=std,
        **more,
    )


def _divide(samples: Samples, seen: int) -> tuple[Samples, Samples]:
    """The samples of the seen classes and those of the unseen; contiguous, so that no part keeps a file in memory."""
    below = samples.y < seen
    if bool(below.all()):  # the usual case, in which a large set need not be copied row by row
        return Samples(samples.x[:].contiguous(), samples.y), Samples(samples.x[:0].clone(), samples.y[:0])
    return Samples(samples.x[below], samples.y[below]), Samples(samples.x[~below], samples.y[~below])


def check_held_out(name: str, held_out: int, classes: int) -> None:
    """Refuse a number of unseen classes that leaves nothing to tell apart."""
    if not 0 <= held_out <= classes - 2:
        raise SelfsameError(f"{name}: held_out must be 0 to {classes - 2} of the {classes} classes, got {held_out}")


def moments(name: str, x: Tensor | Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (n, C, H, W), on the 0 to 1 scale."""
    total_C = torch.zeros(x.shape[1], dtype=torch.float64)
    square_C = torch.zeros(x.shape[1], dtype=torch.float64)
    size = math.prod(x.shape[1:])
    for block in x.split(max(1, min(_BLOCK, _VALUES // size))):
        part = block.double() / 255.0
        total_C += part.sum((0, 2, 3))
        square_C += part.square().sum((0, 2, 3))
    pixels = len(x) * size / x.shape[1]
    mean_C = total_C / pixels
    std_C = (square_C / pixels - mean_C.square()).clamp_min(0.0).sqrt()
    if float(std_C.min()) < 1e-6:
        raise SelfsameError(f"{name}: all pixels of the training images are equal; the images are corrupt")
    return tuple(mean_C.tolist()), tuple(std_C.tolist())
