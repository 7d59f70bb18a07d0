"""Who is always added up with whom: groups that only ever grow by whole groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

Group = tuple[str, ...]


def divided(nodes: Sequence[str], size: int) -> list[Group]:
    """As many groups of `size` or more as there can be, as even as they can be; none where nodes are too few."""
    count = len(nodes) // size
    edges = [len(nodes) * place // count for place in range(count + 1)] if count else []
    return [tuple(nodes[begin:end]) for begin, end in pairwise(edges)]


def joined(groups: Sequence[Group], gone: Collection[str], size: int, most: int) -> list[Group]:
    """The groups, each that has fewer than `size` members left merged with the smallest other that takes it whole."""
    found = list(groups)

    def left(group: Group) -> int:
        return sum(node not in gone for node in group)

    while True:
        small = min((group for group in found if left(group) < size), key=left, default=None)
        others = [group for group in found if group is not small and len(group) + len(small or ()) <= most]
        if small is None or not others:
            return found
        other = min(others, key=len)
        found = [group for group in found if group not in (small, other)] + [other + small]


def whose_turn(groups: Sequence[Group], present: Collection[str], least: int, round: int) -> Group | None:
    """The group of a round: they come in turn, and one of which too few are there is passed over."""
    able = [group for group in groups if sum(node in present for node in group) >= least]
    return able[round % len(able)] if able else None
