"""A finished run as a reader sees it: the view that tables and reports are drawn from, kept in the run's folder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from selfsame.config.recipe import to_toml
from selfsame.data.federation import Federation, Samples, Trials
from selfsame.data.sets.xc import MultiLabelled
from selfsame.engine.groups import groups_of
from selfsame.engine.joint import privacy_spent
from selfsame.engine.sums import noise_spent
from selfsame.errors import SelfsameError
from selfsame.files import parse_json, read_json, read_text, write_json
from selfsame.measure.curves import roc
from selfsame.measure.looks import pair_curve
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable
from selfsame.measure.trials import most_pairs
from selfsame.measure.users import per_user
from selfsame.methods.base import Comparison
from selfsame.methods.wire import Wire
from selfsame.report.figures import project
from selfsame.report.html import write_report
from selfsame.report.view import Picture, RunView
from selfsame.report.words import (
    aggregation_words,
    attacker_words,
    fact_words,
    group_words,
    percent,
    privacy_words,
    updates_words,
)
from selfsame.runs.course import Run

_PICTURED = 210  # samples of people in training in the picture of the embedding space, and a third as many of others
_PICTURED_CLASSES = 100  # of CIFAR-100 all
_PICTURED_EACH = 4  # samples of each of them, about, where that is more
_REFUSED = 2_000  # samples of people in training, and as many of others, by which people are told who is refused


def wire_rows(wire: Wire, summed: bool = False) -> list[tuple[str, str, str, str]]:
    """The wire table as plain values: field, way, the name of its sight, what it is.

    `summed`: whether nobody sees one device's update.
    """
    return [(name, way, sight.name.lower(), what) for name, way, sight, what in wire.rows(summed)]


def view(run: Run) -> RunView:
    """Everything a table or a report needs of this run."""
    choosing = "apart" in run.recipe.data.options  # nobody looks at the picture of such a run, and it takes seconds
    rows = wire_rows(run.problem.method.wire, run.recipe.sums.summed)
    if run.recipe.net.whitened:
        rows.append(("whitening", "up", "sum", "once: mean and covariance of the device's embeddings"))
    final = {k: v for k, v in run.final.items() if k not in ("round", "seconds")}
    notes = [*run.problem.federation.notes, *_one_person(run.problem.federation)]
    facts = run.facts | ({"data notes": "; ".join(notes)} if notes else {})
    if len(run.problem.federation.unseen.x):
        facts["without a network"] = _raw(run)
    if final.get("first_eer") is not None:
        facts["before training"] = (
            f"the network as given, unseen people: AUROC {percent(final['first_auroc'])} %, "
            f"EER {percent(final['first_eer'])} %"
        )
    said = aggregation_words(run.recipe.sums.aggregation, rows, _terms(run))
    if said:
        facts["aggregation"] = said
    spent = privacy_spent(run.problem, run.state)
    spent = spent or noise_spent(run.recipe, run.state.round, run.state.present, run.problem.poll)
    if spent is not None:
        facts["privacy"] = privacy_words(spent)
    if run.leakage is not None:
        facts["attacker"] = attacker_words(run.leakage.how, run.leakage.paper is not None)
        if run.leakage.cosine_mean is not None:
            facts["cosine of true and shared vectors"] = (
                f"{run.leakage.cosine_mean:.3f} +- {run.leakage.cosine_std or 0:.3f}"
            )
        if run.leakage.updates is not None:
            facts["network updates"] = updates_words(
                run.leakage.updates, run.leakage.updates_cosine or 0.0, run.leakage.group, len(run.truth())
            )
    facts |= fact_words(run.problem.method.facts(run.problem.world))
    return RunView(
        title=run.title,
        method=run.recipe.method.name,
        history=run.history,
        final=final,
        left=[(name, sight) for name, way, sight, _ in rows if way == "up"],
        wire=rows,
        seconds=run.seconds,
        roc=run.curves,
        picture=_picture(run) if run.history and not run.diverged and not choosing else None,
        people=_people(run) if run.history and not run.diverged else [],
        warnings=list(run.warnings),
        recipe=to_toml(run.recipe),
        facts=facts,
    )


def _terms(run: Run) -> str:
    """The groups over which sums are, and from how many answers on; none where updates are clear."""
    if not run.recipe.sums.summed:
        return ""
    groups = groups_of(run.recipe, run.state.round, run.state.present)
    return group_words([len(group) for group in groups], run.recipe.sums.least)


def _one_person(federation: Federation) -> list[str]:
    """What to know where the error rate of unseen people is mostly one person's: it is that of all pairs."""
    label_S = federation.unseen.y.cpu().numpy()
    if len(federation.trials) or len(label_S) < 2 or isinstance(federation.unseen, MultiLabelled):
        return []
    label, part, _ = most_pairs(label_S)
    said = f"{100 * part:.0f} % of the pairs of one unseen person are {federation.name_of(label)}'s alone"
    return [said] if part > 0.5 else []


def _raw(run: Run) -> str:
    """How well the raw samples of unseen people tell them apart by cosine: what a network has to beat."""
    federation = run.problem.federation
    found = pair_curve(Comparison(), lambda x: federation.scale(x).flatten(1), federation.unseen)
    return f"raw unseen samples by cosine: AUROC {100 * found.area:.1f} %, EER {100 * found.eer:.1f} %"


def _picture(run: Run) -> Picture | None:
    """Samples of seen and unseen classes with the true and the shared vectors, in two dimensions."""
    problem, state = run.problem, run.state
    if state.alone_NP is not None:
        return None  # every client has a space of its own
    test, unseen = problem.federation.test, problem.federation.unseen
    head = problem.model.head_views(state.theta_P)
    truth = run.truth()[:_PICTURED_CLASSES]
    exposed = None if run.enrolled is not None else problem.method.exposed(state.server, head)
    known = test.y < _PICTURED_CLASSES
    parts, labels, fresh = [], [], []
    offset = problem.world.classes
    pictured = max(_PICTURED, _PICTURED_EACH * len(truth))
    for x, y, new in ((test.x[known], test.y[known], False), (unseen.x, unseen.y + offset, True)):
        step = max(1, -(-len(x) // (pictured if not new else _PICTURED // 3)))
        if len(x):
            parts.append(run.embed(x[::step]))
            labels += y[::step].tolist()
            fresh += [new] * len(y[::step])
    if not parts:
        return None

    def plain(t: torch.Tensor) -> np.ndarray:
        return problem.method.place(t.detach()).double().cpu().numpy()

    names = partial(_name, problem.federation, offset)
    whose = range(len(truth)) if problem.method.row == "class" else problem.world.class_of_N[: len(truth)].tolist()
    return project(
        plain(torch.cat(parts)), plain(truth), None if exposed is None else plain(exposed[: len(truth)]),
        np.array(labels), np.array(fresh), [names(label) for label in labels], [names(one) for one in whose], "tsne",
        "cosine" if problem.method.by_angle else "euclidean",
    )  # fmt: skip


def _name(federation: Federation, classes: int, label: int) -> str:
    """A person in words; labels of unseen people begin after the classes."""
    return federation.name_of(label - classes if label >= classes else label)


def _people(run: Run) -> list[tuple[str, bool, float]]:
    """(name, whether unseen, share of own samples refused at equal errors): seen people, then unseen, worst first."""
    problem, federation = run.problem, run.problem.federation
    if federation.empty or isinstance(federation.test, MultiLabelled):
        return []
    few = replace(federation, test=_some(federation.test), unseen=_some(federation.unseen), trials=Trials.none())
    alone = run.state.alone_NP is not None
    bench = Bench(problem.method, few, run.world, run.truth().detach(), run.embed, alone, 0, 2)
    found: list[tuple[str, bool, float]] = []
    for protocol, new in (("test samples", False), ("unseen, enrolled", True)):
        try:
            scored = PROTOCOLS[protocol](bench).scored
        except Inapplicable:
            continue
        if len(scored.genuine) and len(scored.impostor):
            users = per_user(scored, roc(scored.genuine, scored.impostor).eer_threshold, False, bench.name_of)
            found += sorted(((one["name"], new, 1 - one["tpr"]) for one in users), key=lambda one: -one[2])
    return found


def _some(samples: Samples) -> Samples:
    """An even selection."""
    step = max(1, -(-len(samples.y) // _REFUSED))
    return Samples(samples.x[::step], samples.y[::step])


def keep_view(run_view: RunView, folder: Path) -> None:
    """Write the view beside the run."""
    write_json(folder / "result.json", run_view.to_dict())


def keep_all(run: Run, folder: Path) -> RunView:
    """The view and the report beside the run, as the command leaves them."""
    found = view(run)
    keep_view(found, folder)
    write_report([found], folder / "report.html", f"{run.title} on {run.problem.federation.name}")
    return found


def read_view(folder: Path) -> RunView:
    """The view of a finished run, with its audit and what it has forgotten, where they were asked for."""
    path, audit = folder / "result.json", folder / "audit.json"
    try:
        found = RunView.from_dict(parse_json(read_text(path)))
        found = replace(found, audit=read_json(audit)) if audit.is_file() else found
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SelfsameError(f"{path}: damaged; delete it and resume the run") from None
    return replace(found, facts=found.facts | _forgotten(folder / "evaluation.json"))


def _forgotten(path: Path) -> dict[str, str]:
    """What `selfsame evaluate --also` found on the people of another data set, as a fact."""
    if not path.is_file():
        return {}
    try:
        there = read_json(path).get("elsewhere")
        if there is None:
            return {}
        each = [
            f"{one['name']}: EER {percent(one['before']['value'])} % before training, "
            f"{percent(one['after']['value'])} % after"
            for one in there["protocols"]
        ]
        return {"what was forgotten": f"people of {there['data']}, {'; '.join(each)}"}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SelfsameError(f"{path}: damaged; `selfsame evaluate` writes it anew") from None
