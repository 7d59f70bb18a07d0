"""Promised and kept TPR of thresholds: python bench/promises.py RUN [--draws 400] [--template 20].

Of every person in the run's data with enough held-out samples some make the template, n others set the threshold and
the rest measure the TPR; other people's samples measure the FPR. Prints one table: for each n and promised TPR q the
plain quantile (FedUV's warm-up) and the bounded threshold: guaranteed, "bounded", or where n is too small extrapolated
by a normal fit of the scores or of the log of their distance from the ceiling. "kept" is the share of draws whose TPR
reached q as measured; "expected" what that share is for any continuous distribution, exactly, given that a rest of
finite size measures it (for the fits: by simulation, if they are right); "true" is the same for the true TPR.

    python bench/promises.py --simulate    the same rules on known distributions, judged by the true TPR
    python bench/promises.py RUN --norms   EER of all users together after normalising scores, by norm and cohort
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.device import promise, thresholds  # noqa: E402
from selfsame.errors import SelfsameError  # noqa: E402
from selfsame.measure import normalise  # noqa: E402

SAMPLES = (5, 10, 20, 50)
RATES = (0.9, 0.95)
REST = 25  # scores of a user that must be left to measure the TPR with
RUNS = 5_000  # simulated warm-ups
COHORT = 300


@dataclass(frozen=True)
class People:
    """Embeddings of people, of whom each has some that make the template."""

    emb_U: list[np.ndarray]
    template_UD: np.ndarray
    title: str
    score: normalise.Score
    embed: normalise.Embed
    ceiling: float  # of scores
    raw: tuple[tuple[int, ...], float, float, str]  # shape, range and type of a sample
    strangers: np.ndarray  # raw samples of people who are none of these; may be none


def people_of(folder: Path, template: int, seed: int, shared: int) -> People:
    """Everybody who has enough samples of one kind, held out or unseen: the kind with more such people.

    The first `shared` people, in the order of their numbers, are left out as strangers.
    """
    import torch

    from selfsame.runs.run import load_run

    run = load_run(folder)
    method, federation = run.problem.method, run.problem.federation
    if not method.federated:
        raise SelfsameError(f"{folder}: {method.name} has a network a client, a federated method is needed")
    parts = {"unseen people": federation.unseen, "held-out samples of training people": federation.test}
    least = template + max(SAMPLES) + REST
    enough = {kind: [y for y in part.y.unique().tolist() if int((part.y == y).sum()) >= least]
              for kind, part in parts.items()}  # fmt: skip
    kind = max(enough, key=lambda name: len(enough[name]))
    if len(enough[kind]) < shared + 2:
        raise SelfsameError(f"{folder}: needs {shared + 2} people with {least} samples each, has {len(enough[kind])}")
    part = parts[kind]
    device = run.problem.model.device
    as_tensor = torch.from_numpy

    def embed(raw: np.ndarray) -> np.ndarray:
        return method.place(run.embed(as_tensor(raw).to(device))).cpu().double().numpy()

    def score(emb_SD: np.ndarray, template_TD: np.ndarray) -> np.ndarray:
        return method.score(as_tensor(emb_SD).double(), as_tensor(template_TD).double()).numpy()

    rng = np.random.default_rng(seed)
    emb_U, template_U, strangers = [], [], []
    for place, y in enumerate(enough[kind]):
        rows = torch.from_numpy(rng.permutation(torch.nonzero(part.y == y)[:, 0].cpu().numpy()))
        x = part.x[rows]
        if place < shared:
            strangers.append(x[: COHORT // shared].cpu().numpy())
            continue
        emb = np.concatenate([embed(piece.cpu().numpy()) for piece in x.split(256)])
        template_U.append(method.template(torch.from_numpy(emb[:template])).numpy())
        emb_U.append(emb[template:])
    few = part.x[:2].cpu().numpy()
    low, high = (0.0, 255.0) if few.dtype == np.uint8 else (-32768.0, 32767.0) if few.dtype == np.int16 else (-1.0, 1.0)
    title = f"{method.name} on {federation.name}, {run.state.round} rounds; {len(emb_U)} users: {kind}"
    raw = (few.shape[1:], low, high, str(few.dtype))
    stranger = np.concatenate(strangers) if strangers else few[:0]
    return People(emb_U, np.stack(template_U), title, score, embed, 1.0 if method.by_angle else 0.0, raw, stranger)


def scores_of(people: People) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Genuine and impostor scores of each user."""
    table = np.asarray(people.score(np.concatenate(people.emb_U), people.template_UD))
    owner = np.repeat(np.arange(len(people.emb_U)), [len(emb) for emb in people.emb_U])
    return (
        [table[owner == user, user] for user in range(len(people.emb_U))],
        [table[owner != user, user] for user in range(len(people.emb_U))],
    )


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def expected(rule: str, n: int, rest_U: list[int], q: float, confidence: float, seed: int) -> tuple[float, float]:
    """The share that should keep the promise, measured by a rest of that size, and by the true TPR."""
    if rule in ("warm-up", "bounded"):
        # Which order statistic a rule takes depends on n alone.
        k = int(promise.thresholds(np.arange(1.0, n + 1), q, confidence, None)[rule].value)
        return float(np.mean([promise.share_with_rest(k, n, m, q) for m in rest_U])), thresholds.kept_chance(k, n, q)
    # A fit is right for what it fits, and log(ceiling - score) does not know that it is not a score.
    known = promise.DISTRIBUTIONS["normal"]
    rng = np.random.default_rng(seed)
    tpr = np.array([known.tpr(thresholds.bounded(known.draw(rng, n), q, confidence).value) for _ in range(RUNS)])
    seen = [rng.binomial(m, tpr) >= q * m - 1e-9 for m in rest_U]
    return float(np.mean(seen)), float((tpr >= q).mean())


def promises(people: People, draws: int, confidence: float, seed: int) -> Table:
    """The table of promised and kept."""
    genuine_U, impostor_U = scores_of(people)
    table = Table(title=f"{people.title}; {draws} draws a user, confidence {percent(confidence, 0)} %", box=box.SIMPLE)
    for name in ("n", "q", "rule", "mean TPR", "kept", "expected", "true", "mean FPR"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for q in RATES:
        for n in SAMPLES:
            rest_U = [len(genuine) - n for genuine in genuine_U]
            for kept in promise.measured(genuine_U, impostor_U, n, q, confidence, people.ceiling, draws, seed):
                should, true = expected(kept.rule, n, rest_U, q, confidence, seed)
                shown = (kept.mean_tpr, kept.share, should, true)
                table.add_row(str(n), percent(q, 0), kept.rule, *map(percent, shown), percent(kept.mean_fpr, 2))
    return table


def simulation(confidence: float, seed: int) -> Table:
    """How often the true TPR reaches the promise on known distributions."""
    table = Table(title=f"true TPR >= q in % of {RUNS:,} draws, confidence {percent(confidence, 0)} %", box=box.SIMPLE)
    for name in ("n", "q", "rule", *promise.DISTRIBUTIONS):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for q in RATES:
        for n in SAMPLES:
            found = [promise.simulated(known, n, q, confidence, RUNS, seed) for known in promise.DISTRIBUTIONS.values()]
            share = [{kept.rule: kept.share for kept in rows} for rows in found]
            for rule in dict.fromkeys(rule for rows in share for rule in rows):
                table.add_row(str(n), percent(q, 0), rule, *(percent(rows.get(rule)) for rows in share))
    return table


def cohorts(people: People, seed: int) -> Iterator[tuple[str, normalise.Cohort]]:
    shape, low, high, dtype = people.raw
    yield "public samples", normalise.public_cohort(people.embed, people.strangers)
    yield "noise samples", normalise.noise_cohort(people.embed, shape, COHORT, seed, low, high, dtype)
    yield "random directions", normalise.direction_cohort(people.template_UD.shape[1], COHORT, seed)


def norms(people: People, seed: int) -> Table:
    """EER over all users together, and the FPR at one threshold for all with a TPR of 95 %."""
    from selfsame.measure.scores import eer

    table = Table(title=f"{people.title}; cohorts of {COHORT}", box=box.SIMPLE)
    for name in ("cohort", *(f"{norm}: EER, FPR" for norm in normalise.NORMS)):
        table.add_column(name, justify="right")
    emb_SD = np.concatenate(people.emb_U)
    owner = np.repeat(np.arange(len(people.emb_U)), [len(emb) for emb in people.emb_U])
    own = owner[:, None] == np.arange(len(people.emb_U))
    for name, cohort in cohorts(people, seed):
        cells = []
        for norm in normalise.NORMS:
            score = normalise.normalised(norm, people.score, emb_SD, people.template_UD, cohort)
            at = thresholds.common(score[own], score[~own], tpr=0.95).value
            cells.append(f"{percent(eer(score[own], score[~own])[0], 2)} {percent((score[~own] >= at).mean(), 2)}")
        table.add_row(name, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="folder of a finished run")
    parser.add_argument("--draws", type=int, default=400, help="warm-ups a user")
    parser.add_argument("--template", type=int, default=20, help="samples that make a template")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--strangers", type=int, default=3, help="people who are the public cohort, with --norms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--norms", action="store_true")
    options = parser.parse_args()
    try:
        if options.simulate:
            table = simulation(options.confidence, options.seed)
        elif options.run is None:
            raise SelfsameError("promises: name the folder of a run, or --simulate")
        else:
            shared = options.strangers if options.norms else 0
            people = people_of(options.run, options.template, options.seed, shared)
            if options.norms:
                table = norms(people, options.seed)
            else:
                table = promises(people, options.draws, options.confidence, options.seed)
    except SelfsameError as error:
        sys.exit(str(error))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
