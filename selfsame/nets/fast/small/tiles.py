"""Tiles, where the arithmetic happens: a block of sums that stay in registers.

The numbers of one side are multiplied with vectors of the other. Convolutions, their derivatives in the input and in
the kernels, and those of the linear layer are all made of such tiles, which differ in how they walk through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Processor:
    """What of a processor decides the shape of a tile."""

    lanes: int  # numbers in a vector
    sums: int  # vectors of sums that stay in registers
    wide: int  # of which so many lie side by side, if the channels are that many
    bits: int = 32  # of a number

    def number(self, value: float) -> str:
        """A constant in C."""
        return f"{value!r}f" if self.bits == 32 else repr(value)


def processor(macros: str, bits: int = 32) -> Processor:
    """The processor that a compiler makes code for, by the macros that it defines."""
    if "__AVX512F__" in macros:
        return Processor(512 // bits, 28, 2, bits)
    if "__AVX__" in macros:
        return Processor(256 // bits, 12, 2, bits)
    if "__aarch64__" in macros:
        return Processor(128 // bits, 20, 4, bits)  # of 32 registers; some hold the numbers that are multiplied
    return Processor(128 // bits, 12, 2, bits)


def split(count: int, most: int) -> list[int]:
    """The count in as few parts of at most `most` as there can be, which differ by one at most."""
    parts = -(-count // most)
    return [count * (i + 1) // parts - count * i // parts for i in range(parts)]


def heights(most: int) -> list[int]:
    """How many images one tile takes: as many as there can be, then fewer for the rest."""
    return sorted({most, *(size for size in (4, 1) if size < most)}, reverse=True)


def starts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(where it begins, size) of each part."""
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


Loop = tuple[int | str, int, int]  # how often; numbers to go on by on one side and on the other


@dataclass
class Tiles:
    """The tiles that a network needs, each written once."""

    cpu: Processor
    width: int  # of the embedding
    names: dict[tuple[object, ...], str] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def tile(self, ats: Sequence[int], vectors: int, loops: Sequence[Loop], outs: Sequence[int], begin: str) -> str:
        """The name of a tile: for each number i of `ats`, a row of `vectors` sums of a[i] times b's vectors.

        `begin` says what the sums begin with: "zero", "row" (the same vectors for all) or "add" (what is there).
        """
        key = (tuple(ats), vectors, tuple(loops), tuple(outs), begin)
        if key in self.names:
            return self.names[key]
        name = self.names[key] = f"tile{len(self.names)}"
        lanes = self.cpu.lanes
        lines = [f"static void {name}(const real *a0, const real *b0, const real *begin, real *out, const int n) {{"]
        lines.append("  (void)begin, (void)n;")
        for u, at in enumerate(outs):
            for v in range(vectors):
                first = {"zero": "{0}", "row": f"AT(begin + {v * lanes})", "add": f"AT(out + {at + v * lanes})"}[begin]
                lines.append(f"  vec s{u}_{v} = {first};")
        for depth, (count, da, db) in enumerate(loops):
            inner = depth == len(loops) - 1
            if inner:
                lines.append(f"#pragma GCC unroll {4 if isinstance(count, str) or count > 8 else count}")
            lines.append(
                f"  for (int i{depth} = 0; i{depth} < {count}; i{depth}++, a{depth} += {da}, b{depth} += {db}) {{"
            )
            if not inner:
                lines.append(f"  const real *a{depth + 1} = a{depth}, *b{depth + 1} = b{depth};")
        last = len(loops) - 1
        lines += [f"    const vec w{v} = AT(b{last} + {v * lanes});" for v in range(vectors)]
        for u, at in enumerate(ats):
            lines.append(f"    const real x{u} = a{last}[{at}];")
            lines += [f"    s{u}_{v} += x{u} * w{v};" for v in range(vectors)]
        lines.append("  " + "}" * len(loops))
        for u, at in enumerate(outs):
            lines += [f"  PUT(out + {at + v * lanes}) = s{u}_{v};" for v in range(vectors)]
        self.text += [*lines, "}"]
        return name

    def dots(self, rows: int, columns: int, count: int, between: int) -> str:
        """The name of a tile of products of rows: of some images' features with some rows of the matrix."""
        key = ("dots", rows, columns, count, between)
        if key in self.names:
            return self.names[key]
        name = self.names[key] = f"dots{len(self.names)}"
        lanes = self.cpu.lanes
        pairs = [(u, v) for u in range(rows) for v in range(columns)]
        lines = [f"static void {name}(const real *f, const real *w, const real *bias, real *out) {{"]
        lines += [f"  vec s{u}_{v} = {{0}};" for u, v in pairs]
        lines += ["  int k = 0;", f"  for (; k + V <= {count}; k += V) {{"]
        lines += [f"    const vec w{v} = AT(w + {v * count} + k);" for v in range(columns)]
        for u in range(rows):
            lines.append(f"    const vec f{u} = AT(f + {u * between} + k);")
            lines += [f"    s{u}_{v} += f{u} * w{v};" for v in range(columns)]
        lines += ["  }", "  real t;"]
        for u, v in pairs:
            lines.append(f"  t = bias ? bias[{v}] : 0;")
            lines.append(f"  for (int i = 0; i < {lanes}; i++) t += s{u}_{v}[i];")
            lines.append(f"  for (int i = k; i < {count}; i++) t += f[{u * between} + i] * w[{v * count} + i];")
            lines.append(f"  out[{u * self.width + v}] = t;")
        self.text += [*lines, "}"]
        return name

    def function(self, key: tuple[object, ...], text: str) -> str:
        """The name of a function of this text, which begins with what it is given."""
        if key not in self.names:
            self.names[key] = f"part{len(self.names)}"
            self.text.append(f"static void {self.names[key]}{text}")
        return self.names[key]

    def blocks(self, vectors: int) -> list[tuple[int, int]]:
        """(first vector, how many) of vectors that are computed side by side."""
        return starts(split(vectors, self.cpu.wide))

    def windows(self, rows: int, columns: int, wide: int) -> list[tuple[int, int, int, int]]:
        """(row, column, rows, columns) of the blocks of places that one tile computes, of `wide` vectors each."""
        most = self.cpu.sums // wide
        high = max(1, min(rows, most // columns))
        return [
            (i, j, tall, broad)
            for i, tall in starts(split(rows, high))
            for j, broad in starts(split(columns, max(1, min(columns, most // tall))))
        ]
