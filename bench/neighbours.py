"""FedHide's search among all proxies and in clusters: python bench/neighbours.py [--device cuda] [--width 512].

64 clients per round. Three kinds of table: random directions; a mixture of sqrt(N) / 2 bunches; and (not for 10^6 rows
on a CPU) the proxies that FedHide reports itself when everybody has reported four times with clustered search, starting
from random ones. In the first two a prototype lies at cosine 0.5 to its last proxy, as in training. Prints one table:
milliseconds per round (median, half range) for the whole search, what the server looks up included; the share of the 10
nearest that are found; and what one client is sent. "by prototype" is what would be found in the clusters nearest to
the prototype, which the server does not know and FedHide does not use. A line above each block: what it takes to build
the clusters in three passes and to keep them up, and the negative term with its derivative over all proxies or 1024
drawn ones.

On a CPU everything runs on one thread and is measured in processor time: the machine may be shared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import header, timed
from selfsame.methods import clusters
from selfsame.methods.base import Cohort, Fields, World, unit
from selfsame.methods.fedhide import FedHide
from selfsame.methods.neighbours import nearest
from selfsame.streams import Stream

CLIENTS = 64
PROBES = (1, 4, 16, 64)
FULL = FedHide()
DRAWN = FedHide(negatives=1024)


class Scene:
    """A table of proxies, its clusters, and the prototypes of the clients that look for neighbours in it."""

    def __init__(self, kind: str, rows: int, width: int, device: torch.device) -> None:
        self.rows, self.device, self.zero_1 = rows, device, torch.zeros(1, dtype=torch.int64, device=device)
        row_N = torch.arange(rows, device=device)
        self.method = FedHide(search="clustered", negatives=1)
        self.server: Fields = self.method.begin_server(World(rows, rows, width, row_N), self.stream("server"))
        mixed = kind != "random"
        if mixed:
            bunch_N = Stream.named(0, "bunch", row_N).below(torch.full_like(row_N, max(2, round(rows**0.5) // 2)))
            point_ND = Stream.named(0, "point", bunch_N).normal(width)
            table_ND = unit(unit(point_ND) + 0.7 / width**0.5 * self.server["proxies"] * width**0.5)
        else:
            table_ND = self.server["proxies"].clone()
        self.build_s = 0.0
        if kind == "reported":
            self.prototype_ND = table_ND
            for number in range(4):
                order_N = self.stream("order", number).bits(rows)[0].argsort()
                for part_M in order_N.split(512):
                    self.report(part_M, 4 * number)
        else:
            noise_ND = unit(Stream.named(0, "noise", row_N).normal(width))
            self.server["proxies"] = table_ND
            self.prototype_ND = unit(table_ND + 3**0.5 * noise_ND)  # cosine 0.5 where they are orthogonal
            begun = self.clock()
            for number in range(300):
                self.update(row_N[:1], False, 100, number)
            self.build_s = self.clock() - begun
        self.who = self.cohort(self.stream("clients").bits(rows)[0].topk(CLIENTS).indices)
        self.query_MD = self.prototype_ND[self.who.client_M]
        self.true_MK = nearest(
            self.query_MD, self.server["proxies"], 10, label_M=self.who.class_M, label_N=self.server["proxy_classes"]
        )[1]

    def stream(self, purpose: str, *rest: int) -> Stream:
        return Stream.named(0, purpose, self.zero_1, *rest)

    def cohort(self, client_M: Tensor) -> Cohort:
        return Cohort(client_M, client_M, torch.ones_like(client_M, dtype=torch.bool))

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def update(self, row_M: Tensor, alive: bool, refresh: int, number: int) -> None:
        alive_M = torch.full_like(row_M, alive, dtype=torch.bool)
        clusters.update(self.server, self.server["proxies"], row_M, alive_M, refresh, self.stream("update", number))

    def report(self, client_M: Tensor, number: int) -> None:
        who = self.cohort(client_M)
        proxy_MD = self.method.proxy(
            self.prototype_ND[client_M], self.method.send(self.server, who), who, self.stream("r")
        )
        self.method.absorb(self.server, {"proxy": proxy_MD}, who, who.alive_M, 0.1, self.stream("absorb", number))

    def search(self, method: FedHide) -> Tensor:
        return method.proxy(self.query_MD, method.send(self.server, self.who), self.who, self.stream("r"))

    def negative(self, method: FedHide) -> Tensor:
        query_MD = self.query_MD.detach().requires_grad_()
        value = method.negative(query_MD, method.send(self.server, self.who), self.who).sum()
        return torch.autograd.grad(value, query_MD)[0]

    def recall(self, found_ML: Tensor) -> float:
        hits = [torch.isin(t, f).double().mean() for t, f in zip(self.true_MK, found_ML, strict=True)]
        return float(torch.stack(hits).mean())

    def milliseconds(self, work: Callable[[], object], repeats: int) -> tuple[float, float]:
        def run(count: int) -> float:
            begun = self.clock()
            for _ in range(count):
                work()
            return self.clock() - begun

        first = run(1)
        return timed(run, max(1, min(20, int(0.2 / first))), repeats)


def measure(kind: str, rows: int, width: int, device: torch.device, repeats: int) -> None:
    scene = Scene(kind, rows, width, device)
    server = scene.server
    held = {name: table.numel() * table.element_size() / 2**20 for name, table in server.items()}
    upkeep, _ = scene.milliseconds(lambda: scene.update(scene.who.client_M, True, 1000, 0), repeats)
    moved = float(clusters.displaced(server, server["proxies"]).double().mean())
    server["draw_key"] = scene.stream("draw").key_M
    whole, _ = scene.milliseconds(lambda: scene.negative(FULL), repeats)
    drawn, _ = scene.milliseconds(lambda: scene.negative(DRAWN), repeats)
    built = f"built in {scene.build_s:.1f} s, " if scene.build_s else ""
    print(
        f"-- {kind}, {rows:,} proxies ({held['proxies']:.0f} MiB): {len(server['cluster_centres'])} clusters, {built}"
        f"upkeep {upkeep:.1f} ms per round, {sum(v for k, v in held.items() if k.startswith('cluster')):.1f} MiB, "
        f"{100 * moved:.1f} % of rows displaced; negative term {whole:.1f} ms, drawn {drawn:.1f} ms"
    )
    ms, spread = scene.milliseconds(lambda: scene.search(FULL), repeats)
    size = held["proxies"] + held["proxy_classes"]
    print(f"{kind:9s} {rows:10,d} {'all':>6s} {ms:9.2f} {spread:7.2f} {1.0:8.3f} {'':>13s} {size:9.2f}", flush=True)
    for probes in PROBES:
        method = replace(scene.method, probes=probes)
        found_ML = method.send(server, scene.who)["near_rows"]
        sent = int((found_ML >= 0).sum(1).double().mean() * (width * 4 + 8)) + found_ML[0].numel() * 8
        ms, spread = scene.milliseconds(lambda method=method: scene.search(method), repeats)
        by_prototype = clusters.candidates(server, scene.query_MD, probes)
        print(
            f"{kind:9s} {rows:10,d} {probes:6d} {ms:9.2f} {spread:7.2f} {scene.recall(found_ML):8.3f} "
            f"{scene.recall(by_prototype):13.3f} {sent / 2**20:9.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--width", type=int, default=64, help="embedding width")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(1)
    print(header(device))
    print(f"width {options.width}, {CLIENTS} clients per round, {options.repeats} repeats")
    print(
        f"{'table':9s} {'proxies':>10s} {'probes':>6s} {'ms':>9s} {'+-':>7s} {'recall':>8s} {'by prototype':>13s} "
        f"{'MiB sent':>9s}"
    )
    for rows in map(int, options.rows.split(",")):
        for kind in ("random", "mixture", "reported"):
            if kind != "reported" or rows <= 100_000 or device.type == "cuda":
                measure(kind, rows, options.width, device, options.repeats)


if __name__ == "__main__":
    main()
