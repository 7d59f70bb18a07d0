"""What a paper's page tells of a finished run beyond its records, kept beside the run.

FDML's accuracy (section VII-C) with as many samples and users as the data have, the curves of FedUV's populations, and
figures with people drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfsame.errors import SelfsameError
from selfsame.files import read_json, write_json
from selfsame.measure.curves import FALSE_ACCEPTS, Floats, Ints, roc
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable, Portions, portioned_accuracy
from selfsame.runs.course import Run
from selfsame.runs.redrawn import redrawn_new, redrawn_seen, redrawn_users
from selfsame.streams import host_generator

FILE = "exhibit.json"
DRAWS = 20  # of the samples, and of the users that each is set against
_RATES = np.geomspace(1e-4, 1, 81)  # false accept rates at which a curve is kept
_PAIRS = 200_000

Plain = dict[str, Any]


def user_accuracies(run: Run, portions: Portions, draws: int = DRAWS) -> tuple[Floats, Ints]:
    """FDML's accuracy (section VII-C) for each draw and unseen user who has enough samples, and who these are."""
    if run.state.alone_NP is not None:
        raise SelfsameError("every client has a network of its own, people it has never seen have none")
    unseen = run.problem.federation.unseen
    parts = [run.embed(part) for part in unseen.x.split(256)] if len(unseen.x) else []
    emb_SD = torch.cat(parts) if parts else torch.empty(0, run.problem.world.dim)
    person_S = unseen.y.cpu().numpy()
    found = [
        portioned_accuracy(run.problem.method, emb_SD, person_S, host_generator(0, "VII-C", draw), portions)
        for draw in range(draws)
    ]
    people, count = np.unique(person_S, return_counts=True)
    return np.array(found), people[count >= portions.samples]


def drawn_accuracies(run: Run, portions: Portions, draws: int = DRAWS) -> Floats:
    """The mean over users for each draw."""
    return np.asarray(user_accuracies(run, portions, draws)[0].mean(1))


def beyond(
    folder: Path,
    ended: int,
    opened: Callable[[], Run] | None,
    portions: tuple[int, ...] = (),
    curves: Sequence[str] = (),
    drawn: Sequence[str] = (),
    count: int = 0,
) -> Plain:
    """What is asked for of a run that ended after this round: read where it is kept, measured where it is not.

    `portions` asks for the accuracy, `curves` names protocols, `drawn` the kinds of figures to have in `count`
    replicates: seen, new or vii_c. Without `opened` nothing is measured, and "left" has what is not kept.
    """
    of_users = f"vii_c {' '.join(map(str, portions))}"
    again = {kind: f"drawn {count} {of_users if kind == 'vii_c' else kind}" for kind in drawn if count}
    asked = ([of_users] if portions else []) + [f"curve {name}" for name in curves] + list(again.values())
    found = _read(folder / FILE, ended)
    missing = [name for name in asked if name not in found]
    if missing and opened is not None:
        try:
            run = opened()
        except SelfsameError as error:
            if not set(missing) <= set(again.values()):
                raise
            why = str(error).replace(str(folder), folder.name)  # the page is made without intervals
            found = found | {name: {"refused": why} for name in missing}
        else:
            bench = cache(lambda: _bench(run))
            found = found | {name: _measured(run, bench, name) for name in missing}
            write_json(folder / FILE, {"round": ended, "found": found})
    out: Plain = {"curves": {name: found[key] for name in curves if (key := f"curve {name}") in found}}
    out["drawn"] = {kind: found[name] for kind, name in again.items() if name in found}
    out["left"] = [name for name in missing if name not in found]
    return out | ({"vii_c": found[of_users]} if of_users in found and portions else {})


def _read(file: Path, ended: int) -> Plain:
    """What is kept of a run that ended after this round."""
    kept = read_json(file) if file.is_file() else {"found": {}}
    found = kept.get("found") if isinstance(kept, dict) else None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise SelfsameError(f"{file}: not what `selfsame paper` keeps of a run; delete it to measure again")
    return found if kept.get("round") == ended else {}


def _bench(run: Run) -> Bench:
    problem, alone = run.problem, run.state.alone_NP is not None
    return Bench(problem.method, problem.federation, run.world, run.truth().detach(), run.embed, alone, 0, _PAIRS)


def _measured(run: Run, bench: Callable[[], Bench], name: str) -> Plain:
    """One figure, or why there is none."""
    kind, _, rest = name.partition(" ")
    try:
        if kind == "vii_c":
            values = drawn_accuracies(run, _portions(rest))
            return {"value": float(values.mean()), "deviation": float(values.std()), "draws": len(values)}
        return _curve(bench(), rest) if kind == "curve" else _drawn(run, bench, rest)
    except (SelfsameError, Inapplicable) as reason:
        return {"refused": str(reason)}


def _portions(words: str) -> Portions:
    return Portions(*map(int, words.split()))


def _drawn(run: Run, bench: Callable[[], Bench], words: str) -> Plain:
    """Figures with people drawn again, so many times."""
    number, _, what = words.partition(" ")
    if what == "seen":
        return redrawn_seen(bench(), int(number))
    if what == "new":
        return redrawn_new(bench(), int(number))
    right_DU, person_U = user_accuracies(run, _portions(what.partition(" ")[2]))
    return redrawn_users(run.problem.federation, right_DU.mean(0), person_U, int(number))


def _curve(bench: Bench, protocol: str) -> Plain:
    """The highest true accept rate at each false accept rate that the trials support."""
    scored = PROTOCOLS[protocol](bench).scored
    curve = roc(scored.genuine, scored.impostor)
    rates = _RATES[len(scored.impostor) * _RATES >= FALSE_ACCEPTS]
    return {"fpr": _few(rates), "tpr": _few([curve.tpr_at(rate) for rate in rates])}


def _few(values: Sequence[float] | Floats) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
