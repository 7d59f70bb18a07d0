"""A network that nobody trained here, as a run before its first round: measured by the same protocols as any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from selfsame import nets
from selfsame.config.recipe import apply_settings, from_mapping
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.report.view import RunView
from selfsame.runs.course import Run
from selfsame.runs.run import enrolled_by_clients
from selfsame.runs.summary import view


def untrained_run(
    net: str,
    start: Path,
    data: str,
    path: Path | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
) -> Run:
    """The network with the weights of a file, before its first round; `settings` are those of a recipe."""
    tables = {
        "title": f"{net}, not trained",
        "method": {"name": "fedaws", "neighbours": 1, "distance": nets.own_distance(net)},
        "data": {"name": data, "path": str(path or "")},
        "net": {"name": net, "start": str(start)},
        "run": {"rounds": 1, "device": device or "auto", "compile": "off", "precision": "float32"},
    }
    problem = prepare(from_mapping(apply_settings(tables, settings)))
    return as_untrained(Run(problem, begin(problem, problem.world.clients, blank=True)))


def as_untrained(run: Run) -> Run:
    """The run before its first round, with templates that the clients enrol with some of their own samples."""
    run.untrained = True
    run.enrolled = enrolled_by_clients(run)
    return run


def untrained_view(run: Run) -> RunView:
    """What is measured of a run before its first round."""
    found = as_untrained(run).evaluate(curves=True)
    run.draw(found)
    return replace(view(run), history=[{"round": 0, **found.figures}], final=found.figures)
