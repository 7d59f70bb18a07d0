"""What a run was trained on, in a few numbers: who, how many samples each, in what order, what samples look like.

Decoders differ by a grey level from one machine to the next, so samples are also known by their mean and spread.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.federation import Federation, Rows, Samples
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import read_json, write_json

FILE = "data.json"  # in a run's folder
UNKNOWN = "the run is older than fingerprints: whether this is the data that it was trained on is not known"
TOUCHED = "the samples are nearly those of the training, not to the bit: another decoder, or files that were touched"

_MOST_PEOPLE = 20_000  # above it, people are known by number alone
_MOST_SAMPLES = 20_000  # of a part that are looked at
_MOST_BYTES = 2**26
_BLOCK = 256
_NAMED = 3
_NEAR = 0.02  # of the spread over the samples: as far as two decoders may be apart
_PARTS = ("training", "test", "validation", "unseen")


@dataclass(frozen=True)
class PartPrint:
    """The samples of one part: how many, a digest of some or all of them, and the mean and spread of each of these."""

    samples: int
    digest: str
    looks: str  # float32, two a sample, in base64

    @property
    def looks_S2(self) -> NDArray[np.float32]:
        raw = np.frombuffer(base64.b64decode(self.looks, validate=True), "<f4")
        return raw.reshape(-1, 2).astype(np.float32)


@dataclass(frozen=True)
class Fingerprint:
    """A federation in a few numbers."""

    name: str
    shape: tuple[int, ...]
    clients: int
    seen: dict[str, int]  # training samples by person, in order; nobody where there are too many to name
    unseen: dict[str, int]
    order: str  # a digest of who holds what
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parts: dict[str, PartPrint]

    @staticmethod
    def of(federation: Federation) -> Fingerprint:
        """Looks at no more than some thousand samples of each part."""
        class_N, count_N = federation.class_of_N.cpu().numpy(), federation.count_N.cpu().numpy()
        held_C = np.bincount(class_N, count_N).astype(np.int64) if len(class_N) else np.zeros(0, np.int64)
        label_U, times_U = np.unique(federation.unseen.y.cpu().numpy().reshape(-1), return_counts=True)
        few = len(held_C) + len(label_U) <= _MOST_PEOPLE
        names = federation.class_names
        seen, unseen = (
            {_name(names, label): int(times) for label, times in zip(labels, counts)} if few else {}
            for labels, counts in ((range(len(held_C)), held_C), (label_U.tolist(), times_U))
        )
        order = hashlib.sha256(json.dumps([*seen, "", *unseen]).encode())
        for numbers in (class_N, count_N, label_U, times_U):
            order.update(numbers.astype("<i8").tobytes() + b"|")
        parts = {name: _print(count, blocks) for name, (count, blocks) in _parts(federation).items()}
        shape = tuple(int(side) for side in federation.shape)
        return Fingerprint(
            federation.name,
            shape,
            len(class_N),
            seen,
            unseen,
            order.hexdigest(),
            federation.mean,
            federation.std,
            parts,
        )

    def changes(self, now: Fingerprint) -> str:
        """What is another federation in `now`, in some words; nothing where it is the same."""
        if self.name != now.name:
            return f"the data set was {self.name}, is {now.name}"
        if self.shape != now.shape:
            return f"samples were {_sides(self.shape)}, are {_sides(now.shape)}"
        if (self.clients, len(self.unseen)) != (now.clients, len(now.unseen)) or self.order != now.order:
            return _people(self, now)
        for part in _PARTS:
            if said := _samples(part, self.parts.get(part), now.parts.get(part)):
                return said
        near = len(self.mean) == len(now.mean) and np.allclose(self.mean, now.mean, rtol=1e-2, atol=1e-2)
        return "" if near and np.allclose(self.std, now.std, rtol=1e-2, atol=1e-6) else "samples are scaled otherwise"

    def to_dict(self) -> dict[str, Any]:
        """As plain types, ready for JSON."""
        return asdict(self)


def keep_fingerprint(federation: Federation, folder: Path) -> None:
    """Write what the run in this folder is trained on."""
    write_json(folder / FILE, Fingerprint.of(federation).to_dict())


def check_fingerprint(federation: Federation | Fingerprint, folder: Path) -> tuple[str, ...]:
    """Refuse another federation than that of the run in this folder; gives what a user should know."""
    file = folder / FILE
    if not file.is_file():
        return (UNKNOWN,)
    then = _read(file)
    now = federation if isinstance(federation, Fingerprint) else Fingerprint.of(federation)
    if changed := then.changes(now):
        raise SelfsameError(
            f"{folder}: was trained on other data: {changed}; name the folder of the data as it was with --path, or "
            "train anew"
        )
    same = all(then.parts[part].digest == now.parts[part].digest for part in _PARTS if part in then.parts)
    return () if same else (TOUCHED,)


def _read(file: Path) -> Fingerprint:
    given = read_json(file)
    try:
        found = read_fields("data", given, Fingerprint)
        for part in found.parts.values():
            part.looks_S2  # noqa: B018  decoded to see that it can be
        return found
    except (SelfsameError, ValueError) as error:
        raise SelfsameError(f"{file}: damaged ({error})") from None


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else f"number {label}"


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _parts(federation: Federation) -> dict[str, tuple[int, Iterator[Tensor]]]:
    parts = {name: getattr(federation, name) for name in _PARTS[1:]}
    found = {name: (len(samples.y), _evaluated(samples)) for name, samples in parts.items()}
    return {"training": (int(federation.count_N.sum()), _trained(federation)), **found}


def _spread(number: int, row_bytes: int) -> Tensor:
    """Places of samples, from the first to the last, as many as may be looked at."""
    most = min(number, _MOST_SAMPLES, max(1, _MOST_BYTES // max(1, row_bytes)))
    return torch.arange(most) * number // max(1, most)


def _evaluated(samples: Samples) -> Iterator[Tensor]:
    x = samples.x
    if not len(x):
        return
    size = x.row_bytes if isinstance(x, Rows) else x[:1].numel() * x.element_size()
    for place in _spread(len(x), size).split(_BLOCK):
        yield x[place] if isinstance(x, Rows) else x[place.to(x.device)]


def _trained(federation: Federation) -> Iterator[Tensor]:
    """Training samples as the source gives them: of recordings, the middle."""
    device, count_N = federation.count_N.device, federation.count_N.cpu()
    total = int(count_N.sum())
    if federation.empty or not total:
        return
    end_N = count_N.cumsum(0)
    first = federation.source.rows(federation.class_of_N.new_zeros(1), federation.count_N.new_zeros(1, 1))
    for place in _spread(total, first.numel() * first.element_size()).split(_BLOCK):
        client_M = torch.searchsorted(end_N, place, right=True)
        index_M = place - (end_N - count_N)[client_M]
        yield federation.source.rows(client_M.to(device), index_M[:, None].to(device))[:, 0]


def samples_print(samples: Samples) -> PartPrint:
    """Of one part by itself."""
    return _print(len(samples.y), _evaluated(samples))


def _print(count: int, blocks: Iterator[Tensor]) -> PartPrint:
    digest, looks = hashlib.sha256(str(count).encode()), []
    for block in blocks:
        flat = block.detach().cpu().flatten(1).contiguous()
        digest.update(flat.numpy().tobytes())
        wide = flat.double()
        looks.append(torch.stack([wide.mean(1), wide.std(1, correction=0)], 1))
    values = torch.cat(looks).numpy() if looks else np.zeros((0, 2))
    values = np.where(np.isfinite(values), values, 0.0).astype("<f4")
    return PartPrint(count, digest.hexdigest(), base64.b64encode(values.tobytes()).decode())


def _people(then: Fingerprint, now: Fingerprint) -> str:
    """Who is new, missing, held out or has more samples."""
    before, after = {**then.seen, **then.unseen}, {**now.seen, **now.unseen}
    if not before or not after:
        return f"{then.clients:,} clients then, {now.clients:,} now, or others of them"
    new, gone = [who for who in after if who not in before], [who for who in before if who not in after]
    said = [f"{len(before):,} people then, {len(after):,} now"]
    said += [f"new {_are(new)}"] if new else []
    said += [f"missing {_are(gone)}"] if gone else []
    if not new and not gone:
        moved = [who for who in before if (who in then.seen) != (who in now.seen)]
        other = [who for who in before if before[who] != after[who]]
        said = [f"{_are_list(moved)} held out then or now, not both"] if moved else []
        said += [f"{who} had {before[who]} samples, has {after[who]}" for who in other[:_NAMED] if not moved]
        said += [f"so do {len(other) - _NAMED} more"] if len(other) > _NAMED and not moved else []
        said = said or ["people or samples are in another order"]
    return ": ".join([said[0], "; ".join(said[1:])]) if said[1:] else said[0]


def _are(names: Sequence[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {_are_list(names)}"


def _are_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _samples(part: str, then: PartPrint | None, now: PartPrint | None) -> str:
    """Whether the samples of a part are others than those of the training."""
    if then is None or now is None or then.digest == now.digest:
        return ""
    if then.samples != now.samples:
        return f"{then.samples:,} {part} samples then, {now.samples:,} now"
    a_S2, b_S2 = then.looks_S2, now.looks_S2
    if a_S2.shape != b_S2.shape:
        return f"the {part} samples are others"
    most_2 = _NEAR * np.maximum(a_S2.std(0), 1e-3 * np.abs(a_S2).max(0, initial=0.0)) + 1e-6
    apart = int((np.abs(a_S2 - b_S2) > most_2).any(1).sum())
    return f"{apart:,} of the {len(a_S2):,} {part} samples looked at are others" if apart else ""
