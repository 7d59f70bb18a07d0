"""Convolutions by six points, a third to a quarter of the multiplications (Winograd, 1980); formulas in winograd.h.

The image is cut into squares of M x M places. Those of a strip of squares are taken to the points together; at each of
the 36 points there is then one product of matrices, squares x channels with channels x channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfsame.nets.fast.small.room import SQUARE, Lie, Room, squares_to, strip
from selfsame.nets.fast.small.tiles import Processor, Tiles, split, starts
from selfsame.nets.fast.small.trace import Conv


class Points:
    """Writes what is computed at the points."""

    def __init__(self, cpu: Processor, room: Room, tiles: Tiles) -> None:
        self.cpu, self.room, self.tiles = cpu, room, tiles

    def convolve(
        self, rows: int, columns: int, inside: Lie, a: str, kernels: str, row: str, out: Lie, to: str,
        side: int, channels: int, vectors: int, begin: str,
    ) -> list[str]:  # fmt: skip
        """Calls for all places of an image: `a` with its zeros around, with packed kernels, to `to`."""
        lanes, wide_out = self.cpu.lanes, vectors * self.cpu.lanes
        most = strip(inside.step, wide_out)
        lift = self._lift(inside, rows, columns, side, most)
        land = self._land(out, rows, columns, side, wide_out, most, begin)
        calls = []
        for at, count in self._strips(rows, columns, side, most):
            calls.append(f"  {lift}({a}, space + {self.room.lifted}, {at}, {count});")
            calls.append(f"  for (int q = 0; q < {SQUARE}; q++) {{")
            for first, wide in self.tiles.blocks(vectors):
                width = wide * lanes
                block = f"{kernels} + {first * lanes * SQUARE * channels} + q * {channels * width}"
                for b, high in starts(split(count, self.cpu.sums // wide)):
                    name = self.tiles.tile([u * inside.step for u in range(high)], wide, [(channels, 1, width)],
                                           [u * wide_out for u in range(high)], "zero")  # fmt: skip
                    given = f"space + {self.room.lifted + b * inside.step} + q * {most * inside.step}"
                    gets = f"space + {self.room.landing + b * wide_out + first * lanes} + q * {most * wide_out}"
                    calls.append(f"    {name}({given}, {block}, 0, {gets}, 0);")
            calls.append("  }")
            calls.append(f"  {land}(space + {self.room.landing}, {row or 0}, {to} + {out.origin}, {at}, {count});")
        return calls

    def kernels_backward(self, conv: Conv, inside: Lie, a: str, pull: Lie) -> list[str]:
        """The derivatives in the kernels, at the points: they are taken back once for all images of a network."""
        rows, columns, channels, lanes = conv.out.rows, conv.out.columns, conv.inside.channels, self.cpu.lanes
        wide_out = self.room.up(conv.out.channels)
        most = strip(inside.step, wide_out)
        lift, pulls = (
            self._lift(inside, rows, columns, conv.side, most),
            self._lift_pulls(pull, conv, wide_out, most),
        )
        calls = []
        for at, count in self._strips(rows, columns, conv.side, most):
            calls.append(f"  {lift}({a}, space + {self.room.lifted}, {at}, {count});")
            calls.append(f"  {pulls}(space + {pull.origin}, space + {self.room.landing}, {at}, {count});")
            calls.append(f"  for (int q = 0; q < {SQUARE}; q++) {{")
            for first, wide in self.tiles.blocks(wide_out // lanes):
                for c, some in starts(split(channels, self.cpu.sums // wide)):
                    name = self.tiles.tile(list(range(some)), wide, [(count, inside.step, wide_out)],
                                           [u * wide_out for u in range(some)], "add")  # fmt: skip
                    given = f"space + {self.room.lifted + c} + q * {most * inside.step}"
                    pulled = f"space + {self.room.landing + first * lanes} + q * {most * wide_out}"
                    sums = self.room.point_sums[conv.out.number] + c * wide_out + first * lanes
                    calls.append(f"    {name}({given}, {pulled}, 0, space + {sums} + q * {channels * wide_out}, 0);")
            calls.append("  }")
        return calls

    def give(self, conv: Conv) -> list[str]:
        """What was added up at the points, as it would be without them."""
        number, wide = conv.out.number, self.room.up(conv.out.channels)
        channels, sums = conv.inside.channels, f"space + {self.room.point_sums[number]}"
        return [
            f"  sums_of_points({sums}, {conv.side}, {channels}, {wide}, space + {self.room.sums[number]});",
            f"  memset({sums}, 0, sizeof(real) * {SQUARE * channels * wide});",
        ]

    # Functions that go through a strip of squares

    def _lift(self, inside: Lie, rows: int, columns: int, side: int, most: int) -> str:
        to, more = squares_to(side), side - 1
        given = f"{inside.row}, {inside.step}, {inside.step}, {rows + more} - i, {columns + more} - j"
        body = f"lift(a + i * {inside.row} + j * {inside.step}, {given}, to + t * {inside.step}, {most * inside.step});"
        return self._through("const real *a, real *to", columns, to, body)

    def _lift_pulls(self, pull: Lie, conv: Conv, wide_out: int, most: int) -> str:
        to = squares_to(conv.side)
        given = f"{pull.row}, {pull.step}, {wide_out}, {to}, {conv.out.rows} - i, {conv.out.columns} - j"
        body = f"lift_pulls(a + i * {pull.row} + j * {pull.step}, {given}, to + t * {wide_out}, {most * wide_out});"
        return self._through("const real *a, real *to", conv.out.columns, to, body)

    def _land(self, out: Lie, rows: int, columns: int, side: int, wide_out: int, most: int, begin: str) -> str:
        to = squares_to(side)
        first = f"from + t * {wide_out}, {most * wide_out}, {wide_out}, {to}, {'row' if begin == 'row' else 0}"
        place = f"out + i * {out.row} + j * {out.step}, {out.row}, {out.step}, {rows} - i, {columns} - j"
        body = f"land({first}, {int(begin == 'add')}, {place});"
        return self._through("const real *from, const real *row, real *out", columns, to, f"(void)row; {body}")

    def _through(self, given: str, columns: int, to: int, body: str) -> str:
        """The name of a function that does this for squares from `at` on, at row i and column j of the output."""
        across = -(-columns // to)
        return self.tiles.function(
            ("squares", given, across, to, body),
            f"({given}, const int at, const int count) {{\n  for (int t = 0; t < count; t++) {{\n"
            f"    const int i = (at + t) / {across} * {to}, j = (at + t) % {across} * {to};\n    {body}\n  }}\n}}",
        )

    def _strips(self, rows: int, columns: int, side: int, most: int) -> Sequence[tuple[int, int]]:
        to = squares_to(side)
        return starts(split(-(-rows // to) * -(-columns // to), most))
