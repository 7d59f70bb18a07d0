"""What was found beside what is there without an attack, by plain loops."""

import math
from itertools import combinations

import pytest
import torch

from selfsame.audit.likeness import compare


def test_what_is_beside_what_by_plain_loops(random_lpips):
    """The closest of the group, the mean over others, the best of as many others, and the others' mean."""
    draw_01 = torch.rand(14, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    original, found, other = draw_01[:4].unflatten(0, (2, 2)), draw_01[4:8].unflatten(0, (2, 2)), draw_01[8:]
    got = compare(original, found, other, random_lpips)

    def far(a, b):
        return float(random_lpips.distances(a[None], b[None]))

    def near(a, b):
        return -10 * math.log10(float((a - b).square().mean()))

    for g in range(2):
        for s in range(2):
            x = original[g, s]
            for name, measure, best in (("lpips_GS", far, min), ("psnr_GS", near, max)):
                every = [measure(x, y) for y in other]
                pairs = [best(pair) for pair in combinations(every, 2)]
                expected = {
                    "found": best(measure(x, y) for y in found[g]),
                    "unrelated": sum(every) / 6,
                    "chance": sum(pairs) / 15,
                    "blank": measure(x, other.mean(0)),
                }
                for part, value in expected.items():
                    assert float(getattr(getattr(got, part), name)[g, s]) == pytest.approx(value, rel=1e-4), (
                        part,
                        name,
                    )
