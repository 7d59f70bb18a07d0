"""`selfsame evaluate`: how well the network of a run tells people apart; `evaluations`: several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import Best, Quiet, Settings, TrustCode
from selfsame.errors import SelfsameError
from selfsame.fields import short_name

if TYPE_CHECKING:
    from rich.console import Console


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run; none with --net.")] = None,
    path: Annotated[Path | None, typer.Option("--path", help="Where the data set's files are now.")] = None,
    net: Annotated[str | None, typer.Option("--net", help="In place of a run: a network nobody trained here.")] = None,
    start: Annotated[Path | None, typer.Option("--start", help="With --net: its weights.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="With --net: the data set.")] = None,
    settings: Settings = None,
    also: Annotated[
        str | None,
        typer.Option("--also", help="Another data set, for what was forgotten: EER on its people, before and after."),
    ] = None,
    also_path: Annotated[Path | None, typer.Option("--also-path", help="Where the files of --also are.")] = None,
    also_settings: Annotated[
        list[str] | None, typer.Option("--also-set", metavar="KEY=VALUE", help="An option of that data set.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Pairs of unseen samples to draw, half of them of one person.")] = 200_000,
    bootstrap: Annotated[int, typer.Option(help="Replicates for the 95 % intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for evaluation.json and .html; by default the run's.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto; by default as the run.")] = None,
    best: Best = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Measure how well a trained network tells people apart, or, with --net, one that nobody trained here.

    Error rates with intervals by person, per user, on every protocol the data allow.
    """
    from rich.console import Console

    from selfsame.config.recipe import bare_options
    from selfsame.data import load
    from selfsame.files import write, write_json
    from selfsame.report.evaluation import (
        elsewhere_sheets,
        evaluation_page,
        evaluation_remarks,
        protocol_tables,
        user_sheet,
    )
    from selfsame.report.html import write_report
    from selfsame.runs.assess import assess
    from selfsame.runs.elsewhere import elsewhere
    from selfsame.runs.run import open_run
    from selfsame.runs.summary import read_view
    from selfsame.runs.untrained import untrained_run

    if run is not None and not (net or start or data or settings):
        folder = out or run
    elif run is None and net and start and data:
        folder = out or Path("runs") / f"{short_name(net)}-{data}"
    else:
        raise SelfsameError("evaluate: name the folder of a run, or --net, --start and --data together")
    if also is None and (also_path or also_settings):
        raise SelfsameError("--also-path, --also-set: of which data set? Name it with --also")
    if also is not None and run is None:
        raise SelfsameError("--also: a network that nobody trained has forgotten nothing; name it as --data")
    folder.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before anything is measured
    errors = Console(stderr=True, quiet=quiet)
    with errors.status("loading"):
        if run is not None:
            opened = open_run(run, path, device, trust_code=trust_code, best=best)
        else:
            opened = untrained_run(str(net), Path(str(start)), str(data), path, settings or [], device)
    with errors.status("measuring") as status:
        result = assess(opened, trials, bootstrap, seed, lambda what: status.update(f"measuring: {what}"))
        if also is not None:
            status.update(f"measuring: what was forgotten of {also}")
            options = bare_options(also_settings)
            there = load(also, also_path, **options)
            result["elsewhere"] = elsewhere(opened, also, there, options, trials, bootstrap, seed)
    write_json(folder / "evaluation.json", result)
    write(folder / "evaluation.html", evaluation_page(result))
    if also is not None and folder == run and (run / "result.json").is_file():
        write_report([read_view(run)], run / "report.html", f"{opened.title} on {opened.problem.federation.name}")
    console = _console()
    for table in (*protocol_tables(result, console.width), user_sheet(result).terminal()):
        console.print(table)
    for sheet in elsewhere_sheets(result):
        console.print(sheet.terminal())
    for remark in evaluation_remarks(result):
        print(remark)
    print(f"report: {folder / 'evaluation.html'}")


def evaluations(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that were evaluated, or evaluation.json files.")],
    out: Annotated[Path, typer.Option("--out", help="The page.")] = Path("evaluations.html"),
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw the ROC curves to this .svg, .png or .pdf file.")
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", metavar="NAME", help="Draw these alone; may be repeated.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Compare runs that were evaluated.

    A table of error rates, and the ROC of every protocol, one line per run.
    """
    from selfsame.files import write
    from selfsame.report.evaluations import drawn_roc, eer_sheet, evaluations_page, named, read_evaluation

    results = named([read_evaluation(run) for run in runs], runs)
    curves = b"" if figure is None else drawn_roc(results, figure, protocol or [])
    if figure is not None:
        write(figure, curves)
    write(out, evaluations_page(results))
    if as_markdown:
        print(eer_sheet(results).markdown(), end="")
    else:
        _console().print(eer_sheet(results).terminal())
    print(f"report: {out}" + (f", figure: {figure}" if figure is not None else ""))


def _console() -> Console:
    """Where tables go; a file has no width, so that each row there has one line."""
    from rich.console import Console

    from selfsame.report.evaluation import WIDE

    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
