"""The code of one network's passes, in C: parts.h, tiles, the steps in order with every size written in, threads.h."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

import torch

from selfsame.nets.fast.small.room import CHUNK, SQUARE, Lie, Room, back_by_points, by_points
from selfsame.nets.fast.small.tiles import Loop, Processor, Tiles, heights, split, starts
from selfsame.nets.fast.small.trace import WIDEST, Conv, Features, GroupNorm, Linear, Steps, Tail
from selfsame.nets.fast.small.winograd import Points
from selfsame.nets.norm import TINY

MOST_THREADS = 64


class Emitter:
    """Writes the code of one network for one processor.

    `places`: where each tensor begins in theta, of which the network's part has so many numbers (`size`).
    """

    def __init__(self, steps: Steps, places: Mapping[str, int], size: int, cpu: Processor) -> None:
        self.steps, self.places, self.size, self.cpu = steps, places, size, cpu
        self.room = Room(steps, cpu.lanes)
        self.tiles = Tiles(cpu, steps.linear.width)
        self.points = Points(cpu, self.room, self.tiles)

    # Convolutions

    def convolve(
        self, rows: int, columns: int, inside: Lie, a: str, kernels: str, row: str, out: Lie, to: str,
        side: int, channels: int, stride: int, vectors: int, begin: str,
    ) -> list[str]:  # fmt: skip
        """Calls for all places of an image: `a` with its zeros around, with packed kernels, to `to`."""
        lanes, row_step, step = self.cpu.lanes, inside.row, inside.step
        whole = step == channels  # rows of a window then lie in one piece
        calls = []
        for first, wide in self.tiles.blocks(vectors):
            width = wide * lanes
            if whole:
                loops: list[Loop] = [(side, row_step, side * channels * width), (side * channels, 1, width)]
            else:
                loops = [
                    (side, row_step, side * channels * width),
                    (side, step, channels * width),
                    (channels, 1, width),
                ]
            block = f"{kernels} + {first * lanes * side**2 * channels}"
            for i, j, tall, broad in self.tiles.windows(rows, columns, wide):
                spots = [(p, q) for p in range(tall) for q in range(broad)]
                ats = [stride * (p * row_step + q * step) for p, q in spots]
                outs = [p * out.row + q * out.step for p, q in spots]
                name = self.tiles.tile(ats, wide, loops, outs, begin)
                at = stride * (i * row_step + j * step)
                to_at = out.origin + i * out.row + j * out.step + first * lanes
                begin_at = f"{row} + {first * lanes}" if row else "0"
                calls.append(f"  {name}({a} + {at}, {block}, {begin_at}, {to} + {to_at}, 0);")
        return calls

    def conv_forward(self, conv: Conv) -> list[str]:
        inside, out, number = (
            self.room.values[conv.inside.number],
            self.room.values[conv.out.number],
            conv.out.number,
        )
        shift = (conv.inside.border - conv.padding) * (inside.row + inside.step)
        kernels, row = f"space + {self.room.packed[number]}", f"space + {self.room.biases[number]}"
        vectors, channels = self.room.up(conv.out.channels) // self.cpu.lanes, conv.inside.channels
        given = (conv.out.rows, conv.out.columns, inside, f"saved + {inside.at + shift}", kernels, row, out, "saved")
        if by_points(conv):
            return self.points.convolve(*given, conv.side, channels, vectors, "row")
        return self.convolve(*given, conv.side, channels, conv.stride, vectors, "row")

    def conv_backward(self, conv: Conv, written: set[int]) -> list[str]:
        number, pull = conv.out.number, self.room.pulls[conv.out.number]
        code = self._kernels_backward(conv)
        if conv.bias:
            where = f"space + {pull.origin}, {conv.out.rows}, {conv.out.columns}, {pull.row}, {pull.step}"
            channels, sums = self.room.up(conv.out.channels), f"space + {self.room.bias_sums[number]}"
            code.append(f"  bias_backward({where}, {channels}, {sums});")
        if conv.inside.number == self.steps.first.number:
            return code
        to, step = self.room.pulls[conv.inside.number], self.room.up(conv.out.channels)
        dense = Lie(0, 0, (conv.inside.columns + conv.side - 1) * step, step, 0)
        begin = "add" if conv.inside.number in written else "zero"
        written.add(conv.inside.number)
        kernels = f"space + {self.room.turned[number]}"
        vectors, channels = self.room.up(conv.inside.channels) // self.cpu.lanes, conv.out.channels
        given = (conv.inside.rows, conv.inside.columns, dense, f"space + {pull.at}", kernels, "", to, "space")
        if back_by_points(conv):
            return code + self.points.convolve(*given, conv.side, channels, vectors, begin)
        return code + self.convolve(*given, conv.side, channels, 1, vectors, begin)

    def _kernels_backward(self, conv: Conv) -> list[str]:
        """The derivatives in the kernels: each tap's numbers times the derivatives in the output, over all places."""
        inside, pull, lanes = self.room.values[conv.inside.number], self.room.pulls[conv.out.number], self.cpu.lanes
        shift = (conv.inside.border - conv.padding) * (inside.row + inside.step)
        if by_points(conv):
            return self.points.kernels_backward(conv, inside, f"saved + {inside.at + shift}", pull)
        channels, side, wide_out = conv.inside.channels, conv.side, self.room.up(conv.out.channels)
        loops: list[Loop] = [
            (conv.out.rows, conv.stride * inside.row, pull.row),
            (conv.out.columns, conv.stride * inside.step, pull.step),
        ]
        calls = []
        for first, wide in self.tiles.blocks(wide_out // lanes):
            most = self.cpu.sums // wide
            lines = max(1, min(side, most // (side * channels)))
            for r, tall in starts(split(side, lines)):
                taps = [
                    (i * inside.row + j * inside.step + c, ((i * side) + j) * channels + c)
                    for i in range(r, r + tall) for j in range(side) for c in range(channels)
                ]  # fmt: skip
                for begin, count in starts(split(len(taps), most)):
                    (at, to), group = taps[begin], taps[begin : begin + count]
                    name = self.tiles.tile(
                        [one - at for one, _ in group], wide, loops, [(two - to) * wide_out for _, two in group], "add"
                    )
                    sums = self.room.sums[conv.out.number] + to * wide_out + first * lanes
                    pulls = pull.origin + first * lanes
                    calls.append(f"  {name}(saved + {inside.at + shift + at}, space + {pulls}, 0, space + {sums}, 0);")
        return calls

    def pack(self, turned: bool) -> list[str]:
        code = []
        for conv in self.steps.steps:
            if not isinstance(conv, Conv) or (turned and conv.inside.number == self.steps.first.number):
                continue
            number, outs, taps, lanes = conv.out.number, conv.out.channels, conv.taps, self.cpu.lanes
            weight = f"theta + {self.places[conv.weight]}"
            if conv.standard:
                plain, weight = weight, f"space + {self.room.standard[number]}"
                code.append(f"  standardise({plain}, {outs}, {taps}, {self.cpu.number(TINY)}, {weight});")
            ins, points = conv.inside.channels, back_by_points(conv) if turned else by_points(conv)
            each = SQUARE if points else conv.side**2  # numbers of a kernel
            for first, wide in self.tiles.blocks(self.room.up(ins if turned else outs) // lanes):
                given = f"{weight}, {outs}, {conv.side}, {ins}, {wide * lanes}, {first * lanes}"
                if turned:
                    to = self.room.turned[number] + first * lanes * each * outs
                    code.append(f"  pack_{'points_' * points}turned({given}, space + {to});")
                else:
                    to = self.room.packed[number] + first * lanes * each * ins
                    code.append(f"  pack_{'points' if points else 'kernels'}({given}, space + {to});")
            if not turned:
                code.append(f"  memset(space + {self.room.biases[number]}, 0, sizeof(real) * {self.room.up(outs)});")
                if conv.bias:
                    bias = f"theta + {self.places[conv.bias]}"
                    code.append(f"  memcpy(space + {self.room.biases[number]}, {bias}, sizeof(real) * {outs});")
        return code

    def give(self) -> list[str]:
        """What a thread has added up goes to where it belongs in theta, and begins anew."""
        code = []
        for step in self.steps.steps:
            number = step.out.number
            if isinstance(step, Conv):
                outs, taps, to = step.out.channels, step.taps, self.places[step.weight]
                sums = f"space + {self.room.sums[number]}"
                tail = f"{outs}, {taps}, {self.room.up(outs)}"
                code += self.points.give(step) if by_points(step) else []
                if step.standard:
                    code.append(f"  give_standard({sums}, theta + {to}, {tail}, {self.cpu.number(TINY)}, row + {to});")
                else:
                    code.append(f"  give_kernels({sums}, {tail}, row + {to});")
                code.append(f"  memset({sums}, 0, sizeof(real) * {taps * self.room.up(outs)});")
                if step.bias:
                    sums = f"space + {self.room.bias_sums[number]}"
                    code.append(f"  give({sums}, {outs}, row + {self.places[step.bias]});")
                    code.append(f"  memset({sums}, 0, sizeof(real) * {self.room.up(outs)});")
            elif step.norm is not None:
                channels, wide = step.inside.channels, self.room.stride(step.inside)
                if step.norm.weight:
                    for name, at in ((step.norm.weight, 0), (step.norm.bias, wide)):
                        sums = f"space + {self.room.norm_sums[number] + at}"
                        code.append(f"  give({sums}, {channels}, row + {self.places[name]});")
                code.append(f"  memset(space + {self.room.norm_sums[number]}, 0, sizeof(real) * {2 * wide});")
        return code

    # Tails, features and the linear layer

    def _norm(self, norm: GroupNorm) -> tuple[str, str]:
        gamma, beta = (f"theta + {self.places[name]}" if name else "0" for name in (norm.weight, norm.bias))
        return gamma, beta

    def tail_forward(self, tail: Tail) -> list[str]:
        inside, out, width = (
            self.room.values[tail.inside.number],
            self.room.values[tail.out.number],
            self.room.stride(tail.inside),
        )
        code, terms = [], "0"
        if tail.norm is not None:
            gamma, beta = self._norm(tail.norm)
            terms = f"saved + {self.room.terms[tail.out.number]}"
            image = f"saved + {inside.origin}, {tail.inside.rows}, {tail.inside.columns}, {inside.row}, {width}"
            given = f"{tail.inside.channels}, {tail.norm.groups}, {self.cpu.number(tail.norm.eps)}, {gamma}, {beta}"
            code.append(f"  norm_terms({image}, {given}, {terms});")
        if tail.out.border:
            code.append(f"  memset(saved + {out.at}, 0, sizeof(real) * {out.size});")
        more = "0, 0, 0, 0"
        if tail.add is not None:
            lie = self.room.values[tail.add.number]
            more = f"saved + {lie.origin}, {tail.thin * lie.row}, {tail.thin * lie.step}, {lie.step}"
        image = f"saved + {inside.origin}, {tail.out.rows}, {tail.out.columns}, {inside.row}, {width}"
        norm = f"{int(tail.norm is not None)}, {terms}"
        given = f"{self.cpu.number(tail.slope)}, {tail.pool}, saved + {out.origin}, {out.row}"
        return [*code, f"  tail_forward({image}, {norm}, {more}, {given});"]

    def tail_backward(self, tail: Tail, written: set[int]) -> list[str]:
        number, width = tail.out.number, self.room.stride(tail.inside)
        inside, out = self.room.values[tail.inside.number], self.room.values[number]
        dz, dy = self.room.pulls[number], self.room.pulls[tail.inside.number]
        norm, code = tail.norm, []
        gamma = self._norm(norm)[0] if norm else "0"
        terms = f"saved + {self.room.terms[number]}" if norm else "0"
        more = "0, 0, 0, 0, 0"
        if tail.add is not None:
            lie, shared = self.room.pulls[tail.add.number], tail.add.number in written
            if not shared and tail.thin > 1:
                code.append(f"  memset(space + {lie.at}, 0, sizeof(real) * {lie.size});")
            more = f"space + {lie.origin}, {tail.thin * lie.row}, {tail.thin * lie.step}, {int(shared)}, {lie.step}"
        add = int(tail.inside.number in written)
        sums = self.room.norm_sums.get(number)
        parameters = f"space + {sums}, space + {sums + width}" if sums is not None else "0, 0"
        shape = f"{tail.inside.rows}, {tail.inside.columns}, {tail.out.rows}, {tail.out.columns}"
        code.append(
            f"  tail_backward(saved + {inside.origin}, {shape}, {inside.row}, {width}, {tail.inside.channels}, "
            f"{int(norm is not None)}, {norm.groups if norm else 1}, {gamma}, {terms}, "
            f"{self.cpu.number(tail.slope)}, {tail.pool}, "
            f"saved + {out.origin}, {out.row}, space + {dz.origin}, {dz.row}, {dz.step}, space + {dy.origin}, "
            f"{dy.row}, {dy.step}, {add}, {more}, {parameters});"
        )
        written.add(tail.inside.number)
        if tail.add is not None:
            written.add(tail.add.number)
        return code

    def linear(self, features: Features, linear: Linear) -> str:
        """The linear layer's two passes for up to CHUNK images."""
        count, width, lanes = features.count, linear.width, self.cpu.lanes
        weight, bias = self.places[linear.weight], self.places[linear.bias] if linear.bias else -1
        rows, columns = max(1, self.cpu.sums // 4), 4
        forward, back = [], []
        for j, broad in starts(split(width, columns)):
            given = f"theta + {bias + j}" if bias >= 0 else "0"
            forward.append("  b = 0;")
            for high in heights(rows):
                name = self.tiles.dots(high, broad, count, self.room.saved)
                call = (
                    f"{name}(f + (int64_t)b * SAVED, theta + {weight + j * count}, {given}, out + b * {width} + {j});"
                )
                forward.append(f"  for (; n - b >= {high}; b += {high}) {call}")
        vectors, rest = divmod(count, lanes)
        for first, wide in self.tiles.blocks(vectors) if vectors else []:
            most = self.cpu.sums // wide
            back.append("  b = 0;")
            for high in heights(min(most, CHUNK // 2)):
                name = self.tiles.tile([u * width for u in range(high)], wide, [(width, 1, count)],
                                 [u * count for u in range(high)], "zero")  # fmt: skip
                to = f"to + (int64_t)b * {count} + {first * lanes}"
                call = f"{name}(pull + b * {width}, w + {first * lanes}, 0, {to}, 0);"
                back.append(f"  for (; n - b >= {high}; b += {high}) {call}")
            for j, broad in starts(split(width, most)):
                name = self.tiles.tile(list(range(broad)), wide, [("n", width, self.room.saved)],
                                 [u * count for u in range(broad)], "add")  # fmt: skip
                to = f"row + {weight + j * count + first * lanes}"
                back.append(f"  {name}(pull + {j}, f + {first * lanes}, 0, {to}, n);")
        if rest:
            back.append(
                f"  for (int b = 0; b < n; b++) for (int k = {count - rest}; k < {count}; k++) {{ real t = 0;\n"
                f"    for (int d = 0; d < {width}; d++) {{ t += pull[b * {width} + d] * w[d * {count} + k];\n"
                f"      row[{weight} + d * {count} + k] += pull[b * {width} + d] * f[(int64_t)b * SAVED + k]; }}\n"
                f"    to[b * {count} + k] = t; }}"
            )
        if bias >= 0:
            back.append(f"  for (int b = 0; b < n; b++) give(pull + b * {width}, {width}, row + {bias});")
        return "\n".join([
            "static void linear_forward(const real *f, const real *theta, real *out, int n) {",
            "  int b;", *forward, "}",
            "static void linear_backward(const real *f, const real *theta, const real *pull, real *to, real *row,",
            f"                            int n) {{\n  int b;\n  const real *w = theta + {weight};", *back, "}",
        ])  # fmt: skip

    def code(self) -> str:
        """All of it."""
        first, features = self.steps.first, self.steps.features
        lie = self.room.values[first.number]
        shape = f"{first.rows}, {first.columns}, {first.channels}, {lie.step}, {first.border}"
        forward = [f"  take_image(x, saved + {lie.at}, {shape});"]
        for step in self.steps.steps:
            forward += self.conv_forward(step) if isinstance(step, Conv) else self.tail_forward(step)
        inside, last, mean = self.room.values[features.inside.number], features.inside, int(features.mean)
        size = f"{last.rows}, {last.columns}"
        forward.append(
            f"  features_forward(saved + {inside.origin}, {size}, {inside.row}, {inside.step}, {last.channels}, "
            f"{mean}, saved + {self.room.features});"
        )
        pull = self.room.pulls[last.number]
        to = f"space + {pull.origin}, {pull.row}, {pull.step}"
        backward = [f"  features_backward(pull, {size}, {last.channels}, {mean}, {to});"]
        written = {last.number}
        for step in reversed(self.steps.steps):
            backward += (
                self.conv_backward(step, written) if isinstance(step, Conv) else self.tail_backward(step, written)
            )
        linear = self.linear(features, self.steps.linear)
        sizes = {
            "REAL": self.cpu.bits,
            "V": self.cpu.lanes,
            "WIDEST": self.room.up(WIDEST),
            "CHUNK": CHUNK,
            "MOST_THREADS": MOST_THREADS,
            "SAVED": self.room.saved,
            "SPACE": self.room.space,
            "SIZE": self.size,
            "FEATURES": self.room.features,
            "PULLED": features.count,
            "PULLS": self.room.pulled,
            "WIDTH": self.steps.linear.width,
            "SAMPLE": first.places * first.channels,
        }
        here = resources.files(__package__)
        return "\n".join([
            *(f"#define {name} {value}" for name, value in sizes.items()),
            *((here / name).read_text(encoding="utf-8") for name in ("parts.h", "winograd.h")), *self.tiles.text,
            "static void pack_forward(const real *theta, real *space) {", *self.pack(False), "}",
            "static void pack_backward(const real *theta, real *space) {", *self.pack(True), "}",
            "static void give_all(const real *theta, real *space, real *row) {", "  (void)theta;", *self.give(), "}",
            "static void forward_image(const real *x, const real *theta, real *space, real *saved) {",
            "  (void)theta, (void)space;", *forward, "}",
            "static void backward_image(const real *theta, const real *saved, const real *pull, real *space) {",
            "  (void)theta;", *backward, "}",
            linear, (here / "threads.h").read_text(encoding="utf-8"),
        ])  # fmt: skip


def code(steps: Steps, shapes: Mapping[str, torch.Size], cpu: Processor) -> str:
    """The C code of a network's passes; `shapes` are those of its tensors in the order in which they lie in theta."""
    places, at = {}, 0
    for name, shape in shapes.items():
        places[name] = at
        at += shape.numel()
    return Emitter(steps, places, at, cpu).code()
