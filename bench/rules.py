"""Promised and kept FPR and TPR of every rule: python bench/rules.py RUN [RUN ...] [--draws 20].

Of the people whom a run has never seen every second is of the cohort and the others are measured. Somebody measured
enrols with n samples as `selfsame enrol` does: the first half makes the template, the second sets the threshold. Their
other samples give the TPR, everybody else measured the FPR. Runs differ in their seeds; figures are means over runs
with the least and the most. "told" is the FPR that enrol expects; "within" is the share of enrolments whose FPR is no
larger than the upper end that it prints, which is to be 95 %; "kept" the share whose TPR (tpr, bounded) or FPR (fpr)
is as promised; "refused" the share that enrol refuses, for an expected FPR above 10 % or too few samples. The figures
before it are of all enrolments that have a threshold.

A second table: how often samples are refused as those of several people, honest ones and those of two people in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.device.card import Card, score, template  # noqa: E402
from selfsame.device.rules import MOST_FPR, Rule, check_one_person, expect  # noqa: E402
from selfsame.device.strangers import Strangers, enrolled_cohort, find, upper  # noqa: E402
from selfsame.errors import SelfsameError  # noqa: E402

SAMPLES = (3, 5, 10, 30)
RULES = {
    "tpr 90 %": Rule("tpr", 0.9),
    "bounded 80 %": Rule("bounded", 0.8),
    "fpr 5 %": Rule("fpr", fpr=0.05),
    "fpr 5 %, 80 %": Rule("fpr", confidence=0.8, fpr=0.05),
    "fpr 1 %": Rule("fpr", fpr=0.01),
    "balanced": Rule("balanced"),
    "paper": Rule("paper"),
}
MOST_PEOPLE, MOST_EACH = 60, 80
OTHERS, OTHERS_EACH = 10, 10  # people and their samples whom Algorithm 4 is given


@dataclass
class People:
    """A run's unseen people in two halves: their embeddings (n, D) each."""

    card: Card
    cohort: tuple[Strangers, ...]
    reference: list[np.ndarray]
    measured: list[np.ndarray]


@dataclass
class Tally:
    """What came of the enrolments of one rule."""

    rows: list[tuple[float, float, float, bool, bool]] = field(default_factory=list)  # TPR, FPR, told, within, kept
    refused: int = 0
    tried: int = 0


def people_of(folder: Path, samples: list[int], rest: int, seed: int) -> People:
    """Everybody unseen who has enough samples."""
    import torch

    from selfsame.export.trained import describe, network
    from selfsame.measure.trials import embedded
    from selfsame.runs.run import load_run

    run = load_run(folder)
    problem = run.problem
    views = problem.model.net_views(run.state.theta_P)
    net = network(run.recipe, problem.federation, problem.method, views)
    card = describe(problem.method, problem.federation, net, problem.world.dim)
    part = problem.federation.unseen
    label, count = np.unique(part.y.numpy(), return_counts=True)
    rich = label[count >= max(samples) + rest]
    rng = np.random.default_rng(seed)
    rich = np.sort(rng.permutation(rich)[: 2 * MOST_PEOPLE])
    if len(rich) < 10:
        raise SelfsameError(f"{folder}: {len(rich)} unseen people have {max(samples) + rest} samples, 10 are needed")
    emb = []
    for one in rich:
        rows = rng.permutation(np.flatnonzero(part.y.numpy() == one))[:MOST_EACH]
        emb.append(embedded(run.embed, part.x, torch.from_numpy(rows)).cpu().double().numpy())
    known = enrolled_cohort(lambda e, t: _scores(card, e, t), lambda e: template(card, e), emb[::2], "unseen people")
    return People(card, tuple(known), emb[::2], emb[1::2])


def _scores(card: Card, emb_SD: np.ndarray, template_D: np.ndarray) -> np.ndarray:
    return np.asarray(score(card, emb_SD, template_D), np.float64)


def enrolments(people: People, n: int, draws: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """(warm-up scores, rest of the own scores, strangers' scores, scores of Algorithm 4's others) of each enrolment."""
    rest_of = [
        np.concatenate([emb for j, emb in enumerate(people.measured) if j != o]) for o in range(len(people.measured))
    ]
    for owner, emb in enumerate(people.measured):
        for _ in range(draws):
            order = rng.permutation(len(emb))
            made_from = n - n // 2
            template_D = template(people.card, emb[order[:made_from]])
            some = rng.permutation(len(people.reference))[:OTHERS]
            other = np.concatenate([people.reference[j][:OTHERS_EACH] for j in some])
            parts = (emb[order[made_from:n]], emb[order[n:]], rest_of[owner], other)
            yield tuple(_scores(people.card, part, template_D) for part in parts)


def measured(people: People, samples: list[int], draws: int, seed: int) -> dict[tuple[int, str], Tally]:
    """Every rule with every number of samples."""
    rng = np.random.default_rng(seed)
    out = {(n, name): Tally() for n in samples for name in RULES}
    for n in samples:
        known = find(people.cohort, "enrolled", n - n // 2)
        assert known is not None
        for warm, own, strangers, other in enrolments(people, n, draws, rng):
            for name, rule in RULES.items():
                _enrol(out[n, name], rule, known, warm, own, strangers, other if name == "paper" else ())
    return out


def _enrol(tally: Tally, rule: Rule, known: Strangers, warm, own, strangers, other) -> None:
    tally.tried += 1
    try:
        limit = rule.threshold(warm.tolist(), known, other).value
    except SelfsameError:
        tally.refused += 1
        return
    told = expect(limit, warm, known, ()).let_in
    assert told is not None
    tpr, fpr = float((own >= limit).mean()), float((strangers >= limit).mean())
    kept = fpr <= rule.fpr if rule.fpr is not None else tpr >= rule.tpr - 1e-12
    tally.refused += told.value > MOST_FPR
    tally.rows.append((tpr, fpr, told.value, fpr <= told.high, kept))


def one_person(people: People, samples: list[int], draws: int, seed: int) -> dict[int, tuple[float, float]]:
    """(share of honest, of two people's samples that are refused) with n samples."""
    rng = np.random.default_rng(seed)
    pairs = find(people.cohort, "enrolled", 1)
    out = {}
    for n in samples:
        hits = np.zeros((2, 2))
        for owner, emb in enumerate(people.measured):
            for _ in range(draws):
                mine = emb[rng.permutation(len(emb))[:n]]
                j = (owner + 1 + int(rng.integers(len(people.measured) - 1))) % len(people.measured)
                mixed = mine.copy()
                mixed[1::2] = people.measured[j][rng.permutation(len(people.measured[j]))[: n // 2]]
                for kind, some in enumerate((mine, mixed)):
                    hits[kind] += (_refused(people, some, pairs), 1)
        out[n] = (hits[0, 0] / hits[0, 1], hits[1, 0] / hits[1, 1])
    return out


def _refused(people: People, emb: np.ndarray, pairs: Strangers | None) -> bool:
    """As `Verifier` asks it: by pairs, and against the template."""
    split = len(emb) - len(emb) // 2
    template_D = template(people.card, emb[:split])
    few = emb[np.linspace(0, len(emb) - 1, min(len(emb), 20)).astype(int)]
    square = np.array([_scores(people.card, few, template(people.card, one[None])) for one in few])
    try:
        check_one_person(upper(square).tolist(), pairs, "pairs")
        check_one_person(
            _scores(people.card, emb[split:], template_D).tolist(), find(people.cohort, "enrolled", split), "scores"
        )
    except SelfsameError:
        return True
    return False


def spread(values: list[float], digits: int = 1) -> str:
    """Mean, least and most over runs, in per cent."""
    if not values:
        return "–"
    shown = [f"{100 * value:.{digits}f}" for value in (float(np.mean(values)), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def tables(
    found: list[dict[tuple[int, str], Tally]], alike: list[dict[int, tuple[float, float]]], title: str
) -> list[Table]:
    samples = list(alike[0])
    table = Table(title=title, box=box.MARKDOWN)
    for name in ("n", "rule", "TPR", "FPR", "told", "within", "kept", "refused"):
        table.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    for n in samples:
        for name, rule in RULES.items():
            tallies = [one[n, name] for one in found]
            full = [np.array(tally.rows, float) for tally in tallies if tally.rows]
            columns = [
                spread([float(rows[:, at].mean()) for rows in full], 2 if at in (1, 2) else 1) for at in range(5)
            ]
            if rule.name in ("balanced", "paper"):
                columns[4] = "–"
            refused = spread([tally.refused / tally.tried for tally in tallies])
            table.add_row(str(n), name, *columns, refused)
    second = Table(title="Refused as several people's, %", box=box.MARKDOWN)
    for name in ("n", "one person", "two in turn"):
        second.add_column(name, justify="right", no_wrap=True)
    for n in samples:
        second.add_row(str(n), *(spread([one[n][kind] for one in alike]) for kind in (0, 1)))
    return [table, second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs, one per seed")
    parser.add_argument("--draws", type=int, default=20, help="enrolments of everybody who is measured")
    parser.add_argument("--samples", type=int, nargs="+", default=list(SAMPLES), help="with which somebody enrols")
    parser.add_argument("--rest", type=int, default=10, help="samples that must be left to measure the TPR with")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        people = [people_of(folder, options.samples, options.rest, options.seed) for folder in options.runs]
    except SelfsameError as error:
        sys.exit(str(error))
    found = [measured(one, options.samples, options.draws, options.seed) for one in people]
    alike = [one_person(one, options.samples, options.draws, options.seed) for one in people]
    card = people[0].card
    sizes = ", ".join(f"{len(one.reference)} + {len(one.measured)}" for one in people)
    title = f"{card.method} on {card.data}; people of the cohort + measured: {sizes}; {options.draws} enrolments each"
    for table in tables(found, alike, title):
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
