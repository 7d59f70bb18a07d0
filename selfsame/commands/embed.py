"""Commands that look at samples alone, whoever is enrolled: embed, match."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.enrol import Model, Resize, Samples
from selfsame.commands.options import MovedTo, TrustCode
from selfsame.errors import SelfsameError


def embed(
    model: Model,
    samples: Samples,
    out: Annotated[Path, typer.Option("--out", help="File to write: .npy, or .csv with the samples' names.")],
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the embeddings of samples, one row each. They stand for people: keep them safe."""
    import csv

    import numpy as np

    from selfsame.device.samples import read_named
    from selfsame.export.opened import open_model
    from selfsame.files import write

    if out.suffix not in (".npy", ".csv"):
        raise SelfsameError(f"--out {out}: must end in .npy or .csv")
    opened = open_model(model, trust_code=trust_code, data=path)
    named = read_named(samples, opened.card, resize)
    emb_SD = np.concatenate([opened.embed(raw[None]) for _, raw in named])
    if out.suffix == ".npy":
        binary = io.BytesIO()
        np.save(binary, emb_SD, allow_pickle=False)
        write(out, binary.getvalue())
    else:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["sample", *(f"e{number}" for number in range(emb_SD.shape[1]))])
        rows.writerows([name, *map(float, row)] for (name, _), row in zip(named, emb_SD, strict=True))
        write(out, text.getvalue())
    print(f"{out}: {len(emb_SD)} samples, {emb_SD.shape[1]} numbers each")


def match(
    model: Model,
    a: Annotated[Path, typer.Argument(help="One sample.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    threshold: Annotated[
        float | None,
        typer.Option(help="Score from which they match.", show_default="equal errors of pairs in the model's cohort"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
) -> None:
    """Compare two samples: exit code 0 if they match, 1 if not; nobody need be enrolled."""
    from selfsame.device.match import matched
    from selfsame.device.samples import read_samples
    from selfsame.export.opened import open_model

    opened = open_model(model, trust_code=trust_code, data=path)
    sides = []
    for path in (a, b):
        raw = read_samples([path], opened.card, resize)
        if len(raw) != 1:
            raise SelfsameError(f"{path}: holds {len(raw)} samples, one is compared at a time")
        sides.append(raw[0])
    found = matched(opened, sides[0], sides[1], threshold)
    if as_json:
        share = None if found.strangers is None else found.strangers.value
        record = {"score": found.score, "threshold": found.threshold, "match": found.match}
        print(json.dumps({**record, "llr": found.llr, "strangers": share}))
    else:
        more = "" if found.llr is None else f"; log-likelihood ratio {found.llr:.2f}"
        if found.strangers is not None:
            from selfsame.device.rules import percent

            more += f"; {percent(found.strangers.value)} of pairs of strangers score as high"
        word = "no threshold" if found.threshold is None else f"threshold {found.threshold:.4f}: {found.word}"
        print(f"score {found.score:.4f}, {word}{more}")
    if found.match is False:
        raise typer.Exit(1)
