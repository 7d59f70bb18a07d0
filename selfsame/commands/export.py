"""`selfsame export`: a run's network as one ONNX file, checked against PyTorch before it is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.device.embedder import Embedder, Raw
    from selfsame.runs.run import Run


@dataclass(frozen=True)
class Variant:
    """One way to run the network, and what was measured of it; None: not measured."""

    name: str
    data: bytes = b""  # of the file
    digest: str = ""
    difference: float | None = None  # from PyTorch
    seconds: float | None = None  # a sample
    rates: tuple[float | None, float | None] = (None, None)  # EER over training classes, and over unseen people


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write, NAME.onnx; by default model.onnx in the run's folder.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Write NAME.int8.onnx as well, with int8 weights.")] = False,
    path: Annotated[Path | None, typer.Option("--path", help="Folder with the data set's files.")] = None,
    check: Annotated[int, typer.Option("--check", metavar="N", help="Samples to compare with PyTorch.")] = 256,
    client: Annotated[
        int | None, typer.Option("--client", metavar="K", help="Whose network, where every client has its own.")
    ] = None,
) -> None:
    """Write a run's network as an ONNX file that takes raw samples; needs no PyTorch to be used.

    Left only if it agrees with PyTorch; size, time a sample and error rates are printed.
    """
    from selfsame.files import write

    file = out or run / "model.onnx"
    if file.suffix != ".onnx":
        raise SelfsameError(f"--out {file}: must end in .onnx")
    if check < 1:
        raise SelfsameError(f"--check {check}: must be 1 or more")
    variants = export_run(read_run(run, path), int8=int8, check=check, client=client)
    files = {"float32": file, "int8": file.with_suffix(".int8.onnx")}
    for variant in variants:
        if variant.data:
            write(files[variant.name], variant.data)
    _show(variants, files)


def read_run(folder: Path, path: Path | None = None) -> Run:
    """The run's last state on the CPU, in the precision of its parameters."""
    from selfsame.config.recipe import from_mapping, read_toml
    from selfsame.runs.run import open_run

    double = (folder / "recipe.toml").is_file() and (
        from_mapping(read_toml(folder / "recipe.toml")).run.precision == "float64"
    )
    return open_run(folder, path, "cpu", "float64" if double else "float32")


def export_run(run: Run, *, int8: bool = False, check: int = 256, client: int | None = None) -> list[Variant]:
    """The network in PyTorch, as a float32 file and, if asked for, as an int8 file; nothing is written."""
    from dataclasses import replace

    from selfsame.export.graph import CLOSE, OPSET, calibration, finished, to_int8, to_onnx
    from selfsame.export.trained import describe, network, rate_of

    problem = run.problem
    views = problem.model.net_views(_theta(run, client))
    net = network(run.recipe, problem.federation, problem.method, views)
    rate = rate_of(run.recipe)
    card = describe(problem.method, problem.federation, net, problem.world.dim, rate=rate, opset=OPSET)
    raw = _real_samples(run, check)
    graph = to_onnx(net, problem.federation, raw[:2])
    wanted = run.embed(raw, client).numpy()
    plain = finished(graph, card)
    variants = [Variant("torch", rates=_rates(run, None, client))]
    variants.append(_measured(run, "float32", plain, raw.numpy(), wanted, client))
    apart = variants[-1].difference
    if apart is None or not apart <= CLOSE:
        raise SelfsameError(
            f"export: the file's embeddings are {apart} of their length away from PyTorch's, more than "
            f"{CLOSE:g}; nothing was written"
        )
    if int8:
        small = to_int8(graph, calibration(problem.federation))
        data = finished(small, replace(card, variant="int8"))
        variants.append(_measured(run, "int8", data, raw.numpy(), wanted, client))
    return variants


def _theta(run: Run, client: int | None) -> Any:
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


def _real_samples(run: Run, number: int) -> Any:
    """Raw samples (S, *shape) spread over the test samples of seen and of unseen classes, crops one by one."""
    import torch

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


def _noise(shape: tuple[int, ...], dtype: Any, number: int) -> Any:
    """Raw samples of noise, where there are no others to check with."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(number, *shape, generator=generator, dtype=dtype)
    kind = torch.iinfo(dtype)
    return torch.randint(kind.min, kind.max + 1, (number, *shape), generator=generator, dtype=dtype)


def _measured(run: Run, name: str, data: bytes, raw: Raw, wanted: Raw, client: int | None) -> Variant:
    """A file's difference from PyTorch, its speed and its error rates, all by the reader that a device has."""
    from selfsame.device.embedder import OnnxEmbedder
    from selfsame.export.graph import difference, seconds_a_sample

    embedder = OnnxEmbedder(data, f"the {name} file")
    return Variant(
        name,
        data,
        embedder.card.digest,
        difference(embedder.embed(raw), wanted),
        seconds_a_sample(embedder, raw),
        _rates(run, embedder, client),
    )


def _rates(run: Run, embedder: Embedder | None, client: int | None) -> tuple[float | None, float | None]:
    """EER over samples of the training classes, and over pairs of samples of unseen people, where there are any."""
    import torch
    from torch import Tensor

    from selfsame.measure.curves import eer
    from selfsame.runs.run import Run

    class Through(Run):
        """The run with its network in a file."""

        def embed(self, raw: Tensor, client: int | None = None) -> Tensor:
            if embedder is None:
                return super().embed(raw, client)
            shape = self.problem.federation.shape
            emb = torch.from_numpy(embedder.embed(raw.reshape(-1, *raw.shape[-len(shape) :]).numpy()))
            emb = emb.to(self.problem.model.dtype)
            if raw.dim() - len(shape) == 1:
                return emb
            return self.problem.method.place(emb.unflatten(0, raw.shape[:2])).mean(1)

    through = Through(run.problem, run.state, enrolled=run.enrolled)
    if client is None:
        figures = through.evaluate().figures
        return figures.get("eer_seen"), figures.get("eer")
    problem = run.problem
    test, own_class = problem.federation.test, int(problem.world.class_of_N[client])
    truth_ND = run.truth()
    emb = torch.cat([through.embed(part, client) for part in test.x.split(1024)])
    score_S = problem.method.score(emb, truth_ND[client : client + 1])[:, 0]
    own_S = test.y == own_class
    both = bool(own_S.any()) and not bool(own_S.all())
    return eer(score_S[own_S], score_S[~own_S])[0] if both else None, None


def _show(variants: list[Variant], files: dict[str, Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    def shown(value: float | None, form: str, factor: float = 1.0) -> str:
        return "–" if value is None else format(factor * value, form)

    console = Console()
    table = Table("", *(variant.name for variant in variants))
    sizes = [f"{len(variant.data):,}" if variant.data else "–" for variant in variants]
    table.add_row("bytes", *sizes)
    table.add_row("ms a sample, one thread", *(shown(v.seconds, ".3f", 1e3) for v in variants))
    table.add_row("difference from PyTorch", *(shown(v.difference, ".1e") for v in variants))
    table.add_row("EER %, training classes", *(shown(v.rates[0], ".2f", 100) for v in variants))
    table.add_row("EER %, pairs of unseen people", *(shown(v.rates[1], ".2f", 100) for v in variants))
    console.print(table)
    for variant in variants:
        if variant.data:
            console.print(
                f"{files[variant.name]}: digest {variant.digest}", markup=False, highlight=False, soft_wrap=True
            )
