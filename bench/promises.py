"""Promised and kept TPR of thresholds: python bench/promises.py RUN [--draws 400] [--template 20].

Of every person in the run's data with enough held-out samples some make the template, n others set the threshold and
the rest measure the TPR; other people's samples measure the FPR. Prints one table: for each n and promised TPR q the
plain quantile (FedUV's warm-up) and the bounded threshold: guaranteed, "bounded", or where n is too small extrapolated
by a normal fit of the scores or of the log of their distance from the ceiling. "kept" is the share of draws whose TPR
reached q as measured; "expected" what that share is for any continuous distribution, exactly, given that a rest of
finite size measures it (for the fits: by simulation, if they are right); "true" is the same for the true TPR.

    python bench/promises.py --simulate    the same rules on known distributions, judged by the true TPR
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import kept  # noqa: E402
from selfsame.device import thresholds  # noqa: E402
from selfsame.errors import SelfsameError  # noqa: E402

SAMPLES = (5, 10, 20, 50)
RATES = (0.9, 0.95)
REST = 25  # scores of a user that must be left to measure the TPR with
RUNS = 5_000  # simulated warm-ups


@dataclass(frozen=True)
class People:
    """Scores of people against their own templates."""

    genuine_U: list[np.ndarray]
    impostor_U: list[np.ndarray]
    title: str
    ceiling: float  # of scores


def people_of(folder: Path, template: int, seed: int) -> People:
    """Everybody who has enough samples of one kind, held out or unseen: the kind with more such people."""
    import torch

    from selfsame.measure.trials import embedded
    from selfsame.runs.run import load_run

    run = load_run(folder)
    method, federation = run.problem.method, run.problem.federation
    if not method.federated:
        raise SelfsameError(f"{folder}: {method.name} has a network per client, a federated method is needed")
    parts = {"unseen people": federation.unseen, "held-out samples of training people": federation.test}
    least = template + max(SAMPLES) + REST
    enough = {kind: [y for y in part.y.unique().tolist() if int((part.y == y).sum()) >= least]
              for kind, part in parts.items()}  # fmt: skip
    kind = max(enough, key=lambda name: len(enough[name]))
    if len(enough[kind]) < 2:
        raise SelfsameError(f"{folder}: needs 2 people with {least} samples each, has {len(enough[kind])}")
    part = parts[kind]
    rng = np.random.default_rng(seed)
    emb_U, template_U = [], []
    for y in enough[kind]:
        rows = torch.from_numpy(rng.permutation(torch.nonzero(part.y == y)[:, 0].cpu().numpy()))
        emb = method.place(embedded(run.embed, part.x, rows)).cpu().double()
        template_U.append(method.template(emb[:template]))
        emb_U.append(emb[template:])
    table = method.score(torch.cat(emb_U), torch.stack(template_U)).numpy()
    owner = np.repeat(np.arange(len(emb_U)), [len(emb) for emb in emb_U])
    genuine_U = [table[owner == user, user] for user in range(len(emb_U))]
    impostor_U = [table[owner != user, user] for user in range(len(emb_U))]
    title = f"{method.name} on {federation.name}, {run.state.round} rounds; {len(emb_U)} users: {kind}"
    return People(genuine_U, impostor_U, title, 1.0 if method.by_angle else 0.0)


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def expected(rule: str, n: int, rest_U: list[int], q: float, confidence: float, seed: int) -> tuple[float, float]:
    """The share that should keep the promise, measured by a rest of that size, and by the true TPR."""
    if rule in ("warm-up", "bounded"):
        # Which order statistic a rule takes depends on n alone.
        k = int(kept.thresholds(np.arange(1.0, n + 1), q, confidence, None)[rule].value)
        return float(np.mean([kept.share_with_rest(k, n, m, q) for m in rest_U])), thresholds.kept_chance(k, n, q)
    # A fit is right for what it fits, and log(ceiling - score) does not know that it is not a score.
    known = kept.DISTRIBUTIONS["normal"]
    rng = np.random.default_rng(seed)
    tpr = np.array([known.tpr(thresholds.bounded(known.draw(rng, n), q, confidence).value) for _ in range(RUNS)])
    seen = [rng.binomial(m, tpr) >= q * m - 1e-9 for m in rest_U]
    return float(np.mean(seen)), float((tpr >= q).mean())


def promises(people: People, draws: int, confidence: float, seed: int) -> Table:
    """The table of promised and kept."""
    table = Table(title=f"{people.title}; {draws} draws a user, confidence {percent(confidence, 0)} %", box=box.SIMPLE)
    for name in ("n", "q", "rule", "mean TPR", "kept", "expected", "true", "mean FPR"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for q in RATES:
        for n in SAMPLES:
            rest_U = [len(genuine) - n for genuine in people.genuine_U]
            scores = (people.genuine_U, people.impostor_U)
            for row in kept.measured(*scores, n, q, confidence, people.ceiling, draws, seed):
                should, true = expected(row.rule, n, rest_U, q, confidence, seed)
                shown = (row.mean_tpr, row.share, should, true)
                table.add_row(str(n), percent(q, 0), row.rule, *map(percent, shown), percent(row.mean_fpr, 2))
    return table


def simulation(confidence: float, seed: int) -> Table:
    """How often the true TPR reaches the promise on known distributions."""
    table = Table(title=f"true TPR >= q in % of {RUNS:,} draws, confidence {percent(confidence, 0)} %", box=box.SIMPLE)
    for name in ("n", "q", "rule", *kept.DISTRIBUTIONS):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for q in RATES:
        for n in SAMPLES:
            found = [kept.simulated(known, n, q, confidence, RUNS, seed) for known in kept.DISTRIBUTIONS.values()]
            share = [{row.rule: row.share for row in rows} for rows in found]
            for rule in dict.fromkeys(rule for rows in share for rule in rows):
                table.add_row(str(n), percent(q, 0), rule, *(percent(rows.get(rule)) for rows in share))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="folder of a finished run")
    parser.add_argument("--draws", type=int, default=400, help="warm-ups a user")
    parser.add_argument("--template", type=int, default=20, help="samples that make a template")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    try:
        if options.simulate:
            table = simulation(options.confidence, options.seed)
        elif options.run is None:
            raise SelfsameError("promises: name the folder of a run, or --simulate")
        else:
            people = people_of(options.run, options.template, options.seed)
            table = promises(people, options.draws, options.confidence, options.seed)
    except SelfsameError as error:
        sys.exit(str(error))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
