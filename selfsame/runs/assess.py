"""A trained network measured: from a run to the figures of every protocol that its data allow, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable

from selfsame.data.sets.xc import MultiLabelled
from selfsame.errors import SelfsameError
from selfsame.measure.outcome import Plain, outcome
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable, fdml_accuracy
from selfsame.report.evaluation import FORMAT
from selfsame.runs.course import Run

Tick = Callable[[str], None]  # told what is measured next


def assess(run: Run, trials: int = 200_000, bootstrap: int = 1000, seed: int = 0, tick: Tick | None = None) -> Plain:
    """Every figure of a run that its data allow, as plain numbers and words, ready for JSON."""
    for option, value, least in (("--trials", trials, 2), ("--bootstrap", bootstrap, 0)):
        if value < least:
            raise SelfsameError(f"{option}: must be at least {least}, got {value}")
    problem, state = run.problem, run.state
    if problem.federation.empty:
        raise SelfsameError(f"{run.folder}: the server has no samples to measure with; name the data set with --path")
    tell = tick or (lambda _: None)
    alone = state.alone_NP is not None
    bench = Bench(problem.method, problem.federation, run.world, run.truth().detach(), run.embed, alone, seed, trials)
    found: dict[str, Plain] = {}
    skipped: list[Plain] = []
    for name, measure in PROTOCOLS.items():
        tell(name)
        try:
            found[name] = outcome(measure(bench), bootstrap, bench.rng, bench.name_of)
        except Inapplicable as reason:
            skipped.append({"name": name, "why": str(reason)})
    tell("FDML accuracy")
    return {
        "format": FORMAT,
        "title": run.title,
        "method": run.recipe.method.name,
        "facts": run.facts,
        "round": state.round,
        "seed": seed,
        "bootstrap": bootstrap,
        "protocols": list(found.values()),
        "skipped": skipped,
        "one_class_auroc": found["test samples"]["users"]["one_class_auroc"] if "test samples" in found else None,
        "fdml": fdml_accuracy(bench),
        "notes": [*_notes(run), *problem.federation.notes],
    }


def _notes(run: Run) -> list[str]:
    """What a reader must know of the run."""
    notes = []
    if run.untrained:
        return ["not trained on these people: templates are made from some of the clients' own samples"]
    if run.recipe.net.whitened:
        return ["whitened after training: templates are made from some of the clients' own samples"]
    if run.state.round < run.recipe.run.rounds:
        notes.append(f"the run is at round {run.state.round:,} of {run.recipe.run.rounds:,}")
    if run.enrolled is not None:
        notes.append("a run on devices: templates of the data's own clients stand in for the vectors that stayed there")
    if isinstance(run.problem.federation.test, MultiLabelled):
        notes.append("samples have several labels: as verification trials, all but one of them count as other people")
    return notes
