"""`selfsame paper`: a table or figure of one of the papers, run and set beside what the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.commands.options import Device, PathTo, Quiet, Rounds, Settings, given_tables
from selfsame.commands.progress import loading, tell, train_left
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.config.experiment import Job
    from selfsame.data import Federation


def paper(
    name: Annotated[
        str,
        typer.Argument(
            help="fedaws, feduv, fedmetric, fedhide or fdml; or a page's JSON file, to make that page anew."
        ),
    ],
    table: Annotated[str | None, typer.Option(help="The number of a table.", show_default="all there are")] = None,
    figure: Annotated[str | None, typer.Option(help="The number of a figure.", show_default="all there are")] = None,
    path: PathTo = None,
    recipes: Annotated[
        Path | None,
        typer.Option(
            "--recipes",
            help="Folder of the papers' recipes; what it lacks is read from recipes/.",
            show_default="recipes/",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TITLE", help="Train only variants with this in their title.")
    ] = None,
    settings: Settings = None,
    rounds: Rounds = None,
    share: Annotated[
        float | None, typer.Option("--share", help="Train this share of each variant's rounds, e.g. 0.2.")
    ] = None,
    because: Annotated[
        str | None,
        typer.Option("--chosen", metavar="TEXT", help="How what you set here was chosen; the page says it."),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Replicates for the 95 % intervals by person; 0 for none.")] = 200,
    lpips: Annotated[
        Path | None,
        typer.Option("--lpips", metavar="FILE", help="FedHide's Table 2: published weights of LPIPS, an .npz file."),
    ] = None,
    device: Device = None,
    at_once: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in a process of its own.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for runs and pages.", show_default="runs/paper- and the name")
    ] = None,
    join: Annotated[
        list[Path] | None,
        typer.Option("--join", metavar="PAGE.json", help="Beside a page's JSON: take what that page lacks from this."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Repeat a table or figure of a paper, beside what it prints.

    Runs what the data allow and the controls beside it, goes on where an earlier call stopped, and writes a page with
    its figures and the JSON that they are made from. What cannot be run is listed with the files that it wants.
    """
    from rich.console import Console

    from selfsame.commands.paper_pictures import AskedPictures, repeat
    from selfsame.commands.torchrun import one_process
    from selfsame.config.exhibits import find_exhibits
    from selfsame.report.beside import CHOSEN
    from selfsame.runs.claim import shared_claim
    from selfsame.runs.paper_measures import PaperMeasures
    from selfsame.runs.paper_recipes import PaperRecipes
    from selfsame.runs.papers import Reprint
    from selfsame.runs.redrawn import REPLICATES

    one_process("selfsame paper")
    if name.endswith(".json"):
        others = (table, figure, path, recipes, only, settings, rounds, share, because, lpips, device, out)
        if bootstrap != REPLICATES or any(given is not None for given in others):
            raise SelfsameError(f"{name}: a page is made anew from its JSON alone; leave out what else is asked for")
        return _make_anew(Path(name), join or [])
    if join:
        raise SelfsameError("--join: joins pages that are there; name the JSON of one in place of a paper")
    exhibits = find_exhibits(name, table, figure)
    if path is not None and not path.exists():
        raise SelfsameError(f"--path {path}: no such folder")
    if share is not None and (rounds is not None or not 0 < share <= 1):
        raise SelfsameError(f"--share {share:g}: expected a number above 0 and up to 1, and no --rounds beside it")
    if bootstrap < 0:
        raise SelfsameError(f"--bootstrap: must be at least 0, got {bootstrap}")
    pictures = [exhibit for exhibit in exhibits if exhibit.pictures]
    if lpips is not None and not pictures:
        raise SelfsameError("--lpips: judges pictures, which FedHide's Table 2 alone has: fedhide --table 2")
    lengths = [f"--{word} {value}" for word, value in (("rounds", rounds), ("share", share)) if value is not None]
    changed = [*(settings or []), *lengths]
    if because is not None:
        if not changed:
            raise SelfsameError("--chosen: nothing is set here whose choice could be told; see --set")
        changed.append(CHOSEN + because)
    folder = out or Path("runs") / f"paper-{name}"
    if pictures:
        if len(exhibits) > 1 or recipes is not None or share is not None or bootstrap != REPLICATES:
            raise SelfsameError(
                f"{pictures[0].option}: attacks on pictures have no recipe, share or bootstrap, and "
                "are asked for by themselves"
            )
        return repeat(
            AskedPictures(
                pictures[0],
                folder,
                path,
                lpips,
                only or [],
                settings or [],
                rounds,
                because,
                device or "auto",
                at_once,
                quiet,
            )
        )
    given = given_tables(device=device, rounds=rounds)
    with loading(quiet):
        found = PaperRecipes(name, exhibits, folder, path, recipes, given, settings or [], changed, share or 1.0)
        reprint = Reprint(PaperMeasures(found, bootstrap), only or [])
    with shared_claim(folder):
        if any(exhibit.timed for exhibit in exhibits):
            reprint.timings = _timed(folder)
        chosen = reprint.chosen()
        reprint.measures.complete(
            measured=lambda _: False
        )  # what cannot be read of ended runs is said before others are trained

        def heard(job: Job, federation: Federation | None) -> None:
            reprint.so_far(job, federation)
            tell(reprint.put_off.get(job.folder, ""))

        try:
            for name, jobs in chosen.items():
                train_left(reprint.campaigns[name], jobs, at_once, quiet, heard)
        except typer.Exit:  # somebody has stopped it
            for page in reprint.so_far():
                tell(f"page so far: {page}")
            raise
        with Console(stderr=True, quiet=quiet).status("measuring") as status:
            reprint.measures.complete(lambda title: status.update(f"measuring: {title}"))
        pages = reprint.write_pages()
    for recipe, why in found.told.items():
        tell(f"not run: {recipe}: {why}")
    for words in reprint.kept:
        tell(words)
    _show(pages)
    if reprint.diverged(chosen) or not (reprint.campaigns or reprint.timings):
        raise typer.Exit(1)


def _make_anew(file: Path, others: Sequence[Path]) -> None:
    """The page and its drawings, without the data or the runs; with what pages from other calls tell beyond it."""
    from selfsame.files import write
    from selfsame.report.exhibit_page import files_again, joined_files

    found = joined_files(file, others) if others else files_again(file)
    for name, content in found.items():
        write(file.parent / name, content)
    print(f"page: {file.with_suffix('.md')}")


def _timed(folder: Path) -> dict[str, Any]:
    """The enclave's seconds, of an earlier call where there was one whose page can be read."""
    from selfsame.config.exhibits import ENCLAVE_SECONDS
    from selfsame.deploy.split.timing import derivative_seconds, timing_words
    from selfsame.report.exhibit_page import page_again

    earlier = page_again(folder / "table-v.json").get("timings")
    if earlier:
        return dict(earlier)
    rows = [{**one, "paper": ENCLAVE_SECONDS[one["participants"]]} for one in derivative_seconds(ENCLAVE_SECONDS)]
    return {"rows": rows, "remarks": timing_words()}


def _show(pages: dict[Path, dict[str, Any]]) -> None:
    """The tables, what to know about them, and the pages."""
    from rich.console import Console

    from selfsame.report.exhibit_tables import said_below, terminal_sheets, timing_sheet

    console = Console(width=None if Console().is_terminal else 80)
    for page, plain in pages.items():
        for part in plain["parts"]:
            print(f"{plain['title']}, {part['data']} ({part['recipe']})")
            for sheet in terminal_sheets(part):
                console.print(sheet.terminal())
            for remark in said_below(part):
                print(remark)
        if plain["timings"]:
            console.print(timing_sheet(plain["timings"]).terminal())
        print(f"page: {page}, figures: {page.with_suffix('.json')}")
