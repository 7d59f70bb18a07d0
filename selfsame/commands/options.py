"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Data = Annotated[
    str | None, typer.Option(help="Data set; `selfsame data` lists them.", show_default="digits, or the recipe's")
]
PathTo = Annotated[Path | None, typer.Option("--path", help="Folder with the data set's files, as published.")]
MovedTo = Annotated[
    Path | None, typer.Option("--path", help="With a run's folder: where its data lies now, if it has moved.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any recipe value, e.g. local.lr=0.05; a bare key is the method's: alpha=0.1.",
    ),
]
Own = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One of its options; `selfsame data` and `methods` list them."),
]
Rounds = Annotated[int | None, typer.Option(help="Training rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random but secrets.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
Precision = Annotated[str | None, typer.Option(help="auto, float32, float64 or bfloat16 (autocast).")]
Compile = Annotated[
    str | None,
    typer.Option(
        help="auto, on, off, or graphs alone. On CUDA, on is auto: torch.compile and graphs. On a CPU small networks "
        "become C code: auto where the run is long enough to gain, on always."
    ),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, cohort or reference (one client at a time).")]
Aggregation = Annotated[
    str | None,
    typer.Option(
        help="How updates are added up: clear (the server reads each), masked or enclave (sums over groups alone).",
        show_default="clear, or the recipe's",
    ),
]
Base = Annotated[
    Path | None, typer.Option("--recipe", help="Recipe (TOML) to start from in place of the tuned preset.")
]
StartFrom = Annotated[
    Path | None,
    typer.Option("--start", help="Weights to begin with: a safetensors or .pt file, or the folder of a run."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; by default a new one under runs/.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Import the method or network that the run's folder names: it runs code.")
]
Best = Annotated[
    bool, typer.Option("--best", help="The checkpoint with the smallest EER on validation samples, not the last.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def given_tables(
    data: str | None = None,
    path: Path | None = None,
    aggregation: str | None = None,
    start: Path | None = None,
    **run: Any,
) -> dict[str, dict[str, Any]]:
    """The options that were given, as the tables of a recipe."""
    where = None if path is None else str(path)
    weights = None if start is None else str(start)
    parts = {
        "data": {"name": data, "path": where},
        "net": {"start": weights},
        "sums": {"aggregation": aggregation},
        "run": run,
    }
    found = {part: {key: value for key, value in table.items() if value is not None} for part, table in parts.items()}
    return {part: table for part, table in found.items() if table}
