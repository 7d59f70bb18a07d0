"""One simulation on several processes: who runs which clients of a round, and what the processes tell one another.

Started by `torchrun`, every process (a rank) runs the same program on the same data. A round's cohort is cut into
shares; each rank runs its own, the weighted update is summed over all, the rows of clients are gathered, and every rank
then takes the same server step. Rank 0 alone prints, evaluates and writes. Collectives: gloo on CPUs, NCCL on GPUs.

`ALONE` is a run in one process: nothing of this happens, and `torch.distributed` is not imported.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import RunPart
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields

_WANTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells each process
_PATIENCE = timedelta(hours=24)  # how long ranks wait while rank 0 evaluates and writes
_ROUND = timedelta(minutes=30)  # and how long a GPU's collective may take
_TOLD = "selfsame/told"  # in the common store: whether somebody has said why the run ends
_PIECE = 2**28  # bytes of a table that are sent at a time

SUMMED, GATHERED = "summed", "gathered"


class RankLost(Exception):
    """Another rank has ended, or all were told to: this one cannot go on."""


@dataclass(frozen=True)
class Crossing:
    """What one field costs a round."""

    how: str  # summed over the ranks, or gathered from them
    size: int  # bytes of the result, as every rank has it in the end

    def out(self, ranks: int) -> float:
        """Bytes that each rank sends, in a ring: a sum passes everything twice, a gathering once."""
        return (2 if self.how == SUMMED else 1) * self.size * (ranks - 1) / ranks


@dataclass(eq=False)
class Ranks:
    """This process among all. Shares are contiguous and differ by one client at most."""

    rank: int = 0
    size: int = 1
    local: int = 0  # the number of this process on its host
    active: bool = False  # whether collectives are used
    backend: str = ""
    crossed: dict[str, Crossing] = field(default_factory=dict)  # of the last round
    _group: Any = None  # of the collectives on tensors; the default group is gloo and carries the rest
    _order: dict[int, Tensor] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        """Whether this process prints, evaluates and writes."""
        return self.rank == 0

    # Shares

    def limits(self, total: int, rank: int) -> tuple[int, int]:
        return total * rank // self.size, total * (rank + 1) // self.size

    def part(self, total: int) -> slice:
        """The places of this rank's clients among `total`; where there is none for it, those of a stand-in."""
        first, last = self.limits(total, self.rank)
        return slice(first, last) if last > first else slice(0, 1)

    def share(self, everyone: Cohort) -> Cohort:
        """This rank's clients. A stand-in gives every rank tensors of the same kinds; it does not answer."""
        if not self.active:
            return everyone
        first, last = self.limits(len(everyone.client_M), self.rank)
        mine = everyone[self.part(len(everyone.client_M))]
        return mine if last > first else Cohort(mine.client_M, mine.class_M, torch.zeros_like(mine.alive_M))

    def rows(self, value_M: Tensor) -> Tensor:
        """This rank's rows of a value that every rank has for the whole cohort; zeros for a stand-in."""
        if not self.active:
            return value_M
        first, last = self.limits(len(value_M), self.rank)
        return value_M[first:last] if last > first else torch.zeros_like(value_M[:1])

    # What crosses every round

    def begin_round(self) -> None:
        """Count anew."""
        self.crossed = {}

    def note(self, name: str, how: str, size: int) -> None:
        before = self.crossed.get(name)
        self.crossed[name] = Crossing(how, size + (before.size if before is not None and before.how == how else 0))

    def gather(self, fields: Fields, total: int) -> Callable[[], Fields]:
        """Begin to collect the rows of all ranks' clients; the call that comes back waits for them, in cohort order.

        As bytes, so that any type of field arrives as it was, all in one collective.
        """
        import torch.distributed as dist

        most = -(-total // self.size)
        mine = self.part(total)
        count = mine.stop - mine.start
        kinds = {name: (value.dtype, value.shape[1:]) for name, value in fields.items()}
        parts = [value.detach().contiguous().reshape(count, -1).view(torch.uint8) for value in fields.values()]
        widths = [part.shape[1] for part in parts]
        for name, width in zip(fields, widths, strict=True):
            self.note(name, GATHERED, self.size * most * width)
        row_MZ = torch.cat(parts, 1)
        if count < most:
            row_MZ = torch.cat([row_MZ, row_MZ.new_zeros(most - count, row_MZ.shape[1])])
        out_RZ = row_MZ.new_empty(self.size * most, row_MZ.shape[1])
        collect = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
        with _listening():
            work = collect(out_RZ, row_MZ.contiguous(), group=self._group, async_op=True)

        def wait() -> Fields:
            with _listening():
                work.wait()
            row_TZ = out_RZ.index_select(0, self._in_order(total, most, out_RZ.device))
            found = {}
            for (name, (dtype, shape)), part in zip(kinds.items(), row_TZ.split(widths, 1), strict=True):
                found[name] = part.contiguous().view(dtype).reshape(total, *shape)
            return found

        return wait

    def _in_order(self, total: int, most: int, device: torch.device) -> Tensor:
        """Where the rows of the cohort lie among the gathered ones, of which some fill up."""
        if total not in self._order:
            places = [
                rank * most + place
                for rank in range(self.size)
                for place in range(self.limits(total, rank)[1] - self.limits(total, rank)[0])
            ]
            self._order[total] = torch.tensor(places, device=device)
        return self._order[total]

    def add(self, name: str, value: Tensor) -> Callable[[], Tensor]:
        """Begin to sum over all ranks, in place; the call that comes back waits. All ranks get the same bits."""
        import torch.distributed as dist

        self.note(name, SUMMED, value.numel() * value.element_size())
        with _listening():
            work = dist.all_reduce(value, group=self._group, async_op=True)

        def wait() -> Tensor:
            with _listening():
                work.wait()
            return value

        return wait

    def stack(self, name: str, value: Tensor) -> Tensor:
        """The same tensor of every rank, with an axis of ranks in front."""
        import torch.distributed as dist

        out = [torch.empty_like(value) for _ in range(self.size)]
        self.note(name, GATHERED, self.size * value.numel() * value.element_size())
        with _listening():
            dist.all_gather(out, value.contiguous(), group=self._group)
        return torch.stack(out)

    # What crosses between blocks of rounds

    def broadcast(self, tensors: Fields) -> None:
        """Every rank's tensors become those of rank 0, in place and bit for bit."""
        if not self.active:
            return
        for value in tensors.values():
            whole = value.is_contiguous()
            flat = (value if whole else value.contiguous()).reshape(-1).view(torch.uint8)
            for piece in flat.split(_PIECE):
                self._from_first(piece, self._group)
            if not whole:
                value.copy_(flat.view(value.dtype).reshape(value.shape))

    def _from_first(self, value: Tensor, group: Any = None) -> None:
        import torch.distributed as dist

        with _listening():
            dist.broadcast(value, 0, group=group)

    def collect(self, block: Tensor, sizes: list[int], everywhere: bool) -> Tensor | None:
        """The rows of all ranks' blocks, one after another: on rank 0, or on every rank."""
        import torch.distributed as dist

        keep = everywhere or self.first
        whole = block.new_empty(sum(sizes), *block.shape[1:]) if keep else None
        at = max(1, _PIECE // max(1, block[:1].numel() * block.element_size()))
        begun = 0
        for rank, size in enumerate(sizes):
            for first in range(0, size, at):
                rows = slice(first, min(size, first + at))
                if not keep and rank != self.rank:
                    continue
                count = rows.stop - rows.start
                piece = block[rows].contiguous() if rank == self.rank else block.new_empty(count, *block.shape[1:])
                with _listening():
                    if everywhere:
                        dist.broadcast(piece, rank, group=self._group)
                    elif rank and rank == self.rank:
                        dist.send(piece, 0, group=self._group)
                    elif rank:
                        dist.recv(piece, rank, group=self._group)
                if whole is not None:
                    whole[begun + rows.start : begun + rows.stop] = piece
            begun += size
        return whole

    def hear(self, text: str = "") -> str:
        """What rank 0 says, on every rank."""
        if not self.active:
            return text
        data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        self._from_first(length)
        said = data if self.first else torch.empty(int(length), dtype=torch.uint8)
        self._from_first(said)
        return bytes(said.tolist())[:-1].decode()

    def agree(self, value: bool) -> bool:
        """What rank 0 has decided."""
        return self.hear("yes" if value else "") == "yes"

    def wait(self) -> None:
        """Until every rank is here; rank 0 may take its time to evaluate and write."""
        if not self.active:
            return
        import torch.distributed as dist

        with _listening():
            dist.barrier()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 first, then one rank a host, then the others: files are decoded once and then mapped."""
        turn = 0 if self.first else 1 if self.local == 0 else 2
        for _ in range(turn):
            self.wait()
        yield
        for _ in range(2 - turn):
            self.wait()

    def same(self, what: str, *parts: Tensor | str) -> None:
        """Refuse to go on where a rank has something else than rank 0."""
        if not self.active:
            return
        import torch.distributed as dist

        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.encode() if isinstance(part, str) else part.cpu().contiguous().numpy().tobytes())
        mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _listening():
            dist.all_gather(found, mine)
        odd = [str(rank) for rank, other in enumerate(found) if not torch.equal(other, found[0])]
        if odd:
            raise SelfsameError(f"rank {', '.join(odd)}: {what} other than rank 0 has; give every host the same files")

    # The machine

    def take_device(self, run: RunPart) -> None:
        """The GPU of this rank on its host, and the group that its collectives use."""
        if not self.active:
            return
        import torch.distributed as dist

        if run.engine == "reference":
            raise SelfsameError("run.engine: the reference engine runs in one process; use cohort with torchrun")
        if run.device == "cpu" or (run.device == "auto" and not torch.cuda.is_available()):
            self.backend = "gloo"
            return
        if run.device not in ("auto", "cuda"):
            raise SelfsameError(
                f"run.device: with torchrun say cpu or cuda, each rank takes its own; got {run.device!r}"
            )
        if self.local >= torch.cuda.device_count():
            raise SelfsameError(
                f"rank {self.rank}: is number {self.local} on its host, which has {torch.cuda.device_count()} CUDA "
                "devices; lower --nproc-per-node or use --device cpu"
            )
        torch.cuda.set_device(self.local)
        self.backend = "nccl"
        self._group = dist.new_group(backend="nccl", timeout=_ROUND)

    @property
    def words(self) -> str:
        """For a report: how many, and how they talk."""
        return f"{self.size} processes ({self.backend})" + (", CUDA graphs off" if self.backend == "nccl" else "")

    def crossing_words(self) -> str:
        """What the last round sent between ranks, largest first."""
        fields = sorted(self.crossed.items(), key=lambda item: -item[1].size)
        out = sum(one.out(self.size) for one in self.crossed.values())
        parts = ", ".join(f"{name} {one.size:,} {one.how}" for name, one in fields)
        return f"{math.ceil(out):,} bytes out of each rank a round ({parts})"

    def first_to_tell(self) -> bool:
        """Whether nobody has yet said why the run ends."""
        from torch.distributed import distributed_c10d

        try:
            return distributed_c10d._get_default_store().add(_TOLD, 1) == 1
        except (RuntimeError, ValueError):  # the store died with the rank that kept it
            return True


ALONE = Ranks()


@contextmanager
def _listening() -> Iterator[None]:
    """A collective that fails means that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        line = re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0])  # without the place in the library's source
        raise RankLost(line.split(". ")[0]) from error


def launched() -> bool:
    """Whether torchrun started this process beside others."""
    return all(name in os.environ for name in _WANTED) and os.environ["WORLD_SIZE"] != "1"


def join() -> Ranks:
    """This process's place among those that torchrun started; alone without it, and with a single process."""
    if not launched():
        return ALONE
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=_PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")), True)


def leave(ranks: Ranks) -> None:
    """When all have come to the end."""
    if not ranks.active:
        return
    import torch.distributed as dist

    ranks.wait()
    dist.destroy_process_group()
