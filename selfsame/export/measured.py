"""A run's network as model files, each measured by the reader that a device has: difference, speed, error rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfsame.device.card import Raw
from selfsame.device.embedder import Embedder, OnnxEmbedder
from selfsame.errors import SelfsameError
from selfsame.export.cohort_of import cohort_of
from selfsame.export.graph import CLOSE, OPSET, calibration, difference, finished, seconds_a_sample, to_int8, to_onnx
from selfsame.export.trained import describe, network, rate_of
from selfsame.measure.curves import roc
from selfsame.runs.course import Run


@dataclass(frozen=True)
class Exported:
    """One way to run the network, and what was measured of it; None: not measured."""

    name: str
    data: bytes = b""  # of the file
    digest: str = ""
    difference: float | None = None  # from PyTorch
    seconds: float | None = None  # a sample
    rates: tuple[float | None, float | None] = (None, None)  # EER over training classes, and over unseen people


def export_run(run: Run, *, int8: bool = False, check: int = 256, client: int | None = None) -> list[Exported]:
    """The network in PyTorch, as a float32 file and, if asked for, as an int8 file; nothing is written."""
    problem = run.problem
    views = problem.model.net_views(_theta(run, client))
    net = network(run.recipe, problem.federation, problem.method, views)
    rate = rate_of(run.recipe)
    card = describe(problem.method, problem.federation, net, problem.world.dim, rate=rate, opset=OPSET)
    card = replace(card, cohort=cohort_of(run, card, client))
    raw = _real_samples(run, check)
    graph = to_onnx(net, problem.federation, raw[:2])
    wanted = run.embed(raw, client).numpy()
    plain = finished(graph, card)
    variants = [Exported("torch", rates=_rates(run, client))]
    variants.append(_measured(run, "float32", plain, raw.numpy(), wanted, client))
    apart = variants[-1].difference
    if apart is None or not apart <= CLOSE:
        raise SelfsameError(
            f"export: the file's embeddings are {apart} of their length away from PyTorch's, more than "
            f"{CLOSE:g}; nothing was written"
        )
    if int8:
        small = to_int8(graph, calibration(problem.federation))
        card = replace(card, variant="int8")
        # What strangers score is what this file makes of them: `enrol` promises by it.
        by_file = _through(run, OnnxEmbedder(finished(small, card), "the int8 file"))
        data = finished(small, replace(card, cohort=cohort_of(by_file, card, client)))
        variants.append(_measured(run, "int8", data, raw.numpy(), wanted, client))
    return variants


def _theta(run: Run, client: int | None) -> Tensor:
    """The parameters to export."""
    alone_NP = run.state.alone_NP
    if alone_NP is None:
        if client is not None:
            raise SelfsameError(f"--client {client}: {run.recipe.method.name} has one network for everybody")
        return run.state.theta_P
    if client is None or not 0 <= client < len(alone_NP):
        raise SelfsameError(
            f"--client: {run.recipe.method.name} has a network for each client; name one from 0 to {len(alone_NP) - 1}"
        )
    return alone_NP[client]


def _real_samples(run: Run, number: int) -> Tensor:
    """Raw samples (S, *shape) spread over the test samples of seen and of unseen classes, crops one by one."""
    federation = run.problem.federation
    sets = [samples.x for samples in (federation.test, federation.unseen) if len(samples.x)]
    parts = []
    for x in sets:
        keep = torch.linspace(0, len(x) - 1, min(len(x), -(-number // len(sets)))).long()
        parts.append(x[keep])
    if federation.empty:
        return _noise(federation.shape, federation.test.x[:0].dtype, number)
    if not parts:
        raise SelfsameError(f"{federation.name}: no test samples to check an export with")
    return torch.cat([part.reshape(-1, *part.shape[-len(federation.shape) :]) for part in parts])[:number]


def _noise(shape: tuple[int, ...], dtype: torch.dtype, number: int) -> Tensor:
    """Raw samples of noise, where there are no others to check with."""
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(number, *shape, generator=generator, dtype=dtype)
    kind = torch.iinfo(dtype)
    return torch.randint(kind.min, kind.max + 1, (number, *shape), generator=generator, dtype=dtype)


def _measured(run: Run, name: str, data: bytes, raw: Raw, wanted: Raw, client: int | None) -> Exported:
    """A file's difference from PyTorch, its speed and its error rates, all by the reader that a device has."""
    embedder = OnnxEmbedder(data, f"the {name} file")
    return Exported(
        name,
        data,
        embedder.card.digest,
        difference(embedder.embed(raw), wanted),
        seconds_a_sample(embedder, raw),
        _rates(_through(run, embedder), client),
    )


def _through(run: Run, file: Embedder) -> FileRun:
    """The run with its network in a file."""
    return FileRun(run.problem, run.state, enrolled=run.enrolled, file=file)


def _rates(run: Run, client: int | None) -> tuple[float | None, float | None]:
    """EER over samples of the training classes, and over pairs of samples of unseen people, where there are any."""
    if client is None:
        figures = run.evaluate().figures
        return figures.get("eer_seen"), figures.get("eer")
    problem = run.problem
    test, own_class = problem.federation.test, int(problem.world.class_of_N[client])
    emb = torch.cat([run.embed(part, client) for part in test.x.split(1024)])
    score_S = problem.method.score(emb, run.truth()[client : client + 1])[:, 0]
    own_S = test.y == own_class
    both = bool(own_S.any()) and not bool(own_S.all())
    return roc(score_S[own_S], score_S[~own_S]).eer if both else None, None


@dataclass(kw_only=True)
class FileRun(Run):
    """A run whose network is in a file."""

    file: Embedder

    def embed_each(self, raw: Tensor, client: int | None) -> Tensor:
        """Embeddings (S, D) of single crops, by the file."""
        return torch.from_numpy(self.file.embed(raw.numpy())).to(self.problem.model.dtype)
