"""`selfsame weights`: the encoders that others have trained; `weights convert` makes a published file ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfsame.errors import SelfsameError

app = typer.Typer(
    help="List the ready encoders and where their weights come from; `weights convert` converts a published file.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)


@app.callback()
def show(context: typer.Context) -> None:
    """List the ready encoders: where their weights are published, under which licence, and the files' digests."""
    if context.invoked_subcommand is not None:
        return
    from selfsame.nets.ready import READY

    for name, encoder in READY.items():
        typer.echo(f"{name}: {encoder.what}")
        typer.echo(f"  from {encoder.package} ({encoder.licence}), {encoder.address}")
        for path, digest in encoder.files.items():
            typer.echo(f"  {path}\n    SHA-256 {digest}")


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="The encoder; `selfsame weights` lists them.")],
    file: Annotated[Path, typer.Argument(help="The package as published, or its file of weights.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, NAME.safetensors.")],
) -> None:
    """Convert published weights to a safetensors file, if digest, shapes and a known answer fit."""
    from selfsame.nets.ready import converted, known, save

    if out.suffix != ".safetensors":
        raise SelfsameError(f"--out {out}: must end in .safetensors")
    encoder = known(name)
    tensors = converted(encoder, file)
    save(encoder, tensors, out)
    count = sum(value.numel() for value in tensors.values())
    typer.echo(f"{out}: {name}, {len(tensors)} tensors, {count:,} parameters; digest, shapes and a known answer fit")
    typer.echo(f"licence of the weights: {encoder.licence} ({encoder.package})")
