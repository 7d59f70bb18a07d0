"""`selfsame audit`: what attackers get of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.options import Quiet, TrustCode


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    attacker: Annotated[
        list[str] | None, typer.Option("--attacker", metavar="NAME", help="This one alone; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds that a watching attacker goes on with a copy of the run.")] = 30,
    path: Annotated[Path | None, typer.Option("--path", help="Where the data set's files are now.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto; by default as the run.")] = None,
    lpips: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of LPIPS (.npz): say how alike found pictures look.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Set every attacker on a trained run and print what each gets.

    Writes audit.json to the run's folder; its report then shows the strongest attacker.
    """
    import json

    from rich.console import Console

    from selfsame.audit import suite
    from selfsame.audit.attackers import Audited, audit_record, chosen, findings
    from selfsame.audit.lpips import Lpips
    from selfsame.config.recipe import stored_recipe
    from selfsame.errors import SelfsameError
    from selfsame.files import write_json
    from selfsame.report.findings import audit_remarks, audit_table, strongest_words
    from selfsame.report.html import write_report
    from selfsame.runs.run import open_run
    from selfsame.runs.summary import read_view

    suite.load()
    attackers = chosen(attacker or [])
    if rounds < 1:
        raise SelfsameError(f"--rounds: must be at least 1, got {rounds}")
    judge = None if lpips is None else Lpips.read(lpips)
    with Console(stderr=True, quiet=quiet).status("loading") as status:
        whitened = bool(stored_recipe(run, trust_code).net.whitened)
        opened = open_run(run, path, device, trust_code=trust_code, as_trained=True)
        if whitened and not opened.state.round:
            raise SelfsameError(f"{run}: nobody trained it, and nothing but one sum has left its devices")
        if opened.enrolled is not None:
            raise SelfsameError(
                f"{run}: a run on devices, where the owners' vectors have stayed; audit a simulated one"
            )
        case = Audited(opened.problem, opened.state, rounds, judge=judge)
        found = findings(case, attackers, lambda name: status.update(f"attacking: {name}"))
    record = audit_record(case, found, opened.title)
    write_json(run / "audit.json", record)
    if (run / "result.json").is_file():
        write_report([read_view(run)], run / "report.html", f"{opened.title} on {opened.problem.federation.name}")
    if as_json:
        print(json.dumps(record, indent=2))
        return
    Console(width=None if Console().is_terminal else 80).print(audit_table(record).terminal())
    print(strongest_words(record))
    for remark in audit_remarks(record):
        print(remark)
    if whitened:
        print("whitened: attackers look at the training before it, and not at the one sum that the layer is made from.")
    print(f"audit: {run / 'audit.json'}")
