"""`selfsame export`: a run's network as one ONNX file, checked against PyTorch before it is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import Best, TrustCode
from selfsame.commands.progress import table_of
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.export.measured import Exported


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run; with --web also an exported file, NAME.onnx.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write, NAME.onnx; by default model.onnx in the run's folder.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Write NAME.int8.onnx as well, with int8 weights.")] = False,
    path: Annotated[Path | None, typer.Option("--path", help="Folder with the data set's files.")] = None,
    check: Annotated[int, typer.Option("--check", metavar="N", help="Samples to compare with PyTorch.")] = 256,
    client: Annotated[
        int | None, typer.Option("--client", metavar="K", help="Whose network, where every client has its own.")
    ] = None,
    best: Best = False,
    trust_code: TrustCode = False,
    web: Annotated[
        Path | None,
        typer.Option("--web", metavar="DIR", help="Write a static web page there that enrols and verifies by itself."),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            "--runtime",
            metavar="FOLDER",
            help="With --web: an installed onnxruntime-web.",
            show_default="node_modules/onnxruntime-web",
        ),
    ] = None,
) -> None:
    """Write a run's network as an ONNX file that takes raw samples; needs no PyTorch to be used.

    Left only if it agrees with PyTorch; size, time a sample and error rates are printed.
    """
    from selfsame.files import write

    page = None if web is None else _page(web, runtime)
    if web is None and runtime is not None:
        raise SelfsameError("--runtime: goes with --web")
    if run.suffix == ".onnx" and not run.is_dir():
        if page is None or out or int8 or path or client is not None or best:
            raise SelfsameError(f"{run}: is exported already; of a model file --web alone makes a page")
        _write_page(page, run)
        return
    from selfsame.export.from_run import read_run
    from selfsame.export.measured import export_run

    file = out or run / "model.onnx"
    if file.suffix != ".onnx":
        raise SelfsameError(f"--out {file}: must end in .onnx")
    if check < 1:
        raise SelfsameError(f"--check {check}: must be 1 or more")
    variants = export_run(read_run(run, path, trust_code, best), int8=int8, check=check, client=client)
    files = {"float32": file, "int8": file.with_suffix(".int8.onnx")}
    for variant in variants:
        if variant.data:
            write(files[variant.name], variant.data)
    _show(variants, files)
    if page is not None:
        _write_page(page, file)


def _page(web: Path, runtime: Path | None) -> tuple[Path, dict[str, bytes]]:
    """Where a page goes and the files of its runtime: checked before anything is computed."""
    from selfsame.export.webpage import RUNTIME, check_place, read_runtime

    check_place(web)
    return web, read_runtime(runtime or RUNTIME)


def _write_page(page: tuple[Path, dict[str, bytes]], model: Path) -> None:
    from selfsame.device.model_file import read_bytes
    from selfsame.export.webpage import page_files, write_page

    folder, runtime = page
    files = page_files(read_bytes(model), str(model), runtime)
    write_page(folder, files)
    print(f"{folder}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB; to look at it here, type:")
    print(f"python -m http.server 8000 --bind 127.0.0.1 --directory {folder}  # then open http://localhost:8000/")


def _show(variants: list[Exported], files: dict[str, Path]) -> None:
    def shown(value: float | None, form: str, factor: float = 1) -> str:
        return "–" if value is None else format(factor * value, form)

    rows = [
        ("bytes", *(shown(len(v.data) or None, ",d") for v in variants)),
        ("ms per sample, one thread", *(shown(v.seconds, ".3f", 1e3) for v in variants)),
        ("difference from PyTorch", *(shown(v.difference, ".1e") for v in variants)),
        ("EER %, training classes", *(shown(v.rates[0], ".2f", 100) for v in variants)),
        ("EER %, pairs of unseen people", *(shown(v.rates[1], ".2f", 100) for v in variants)),
    ]
    table_of(rows, "", *(variant.name for variant in variants))
    for variant in variants:
        if variant.data:
            print(f"{files[variant.name]}: digest {variant.digest}")
