"""What a paper's page tells of a finished run beyond its records, kept beside the run.

FDML's accuracy (section VII-C) with as many samples and users as the data have, and the curves of FedUV's populations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfsame.errors import SelfsameError
from selfsame.files import read_json, write_json
from selfsame.measure.curves import FALSE_ACCEPTS, Floats, roc
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable, Portions, portioned_accuracy
from selfsame.runs.course import Run
from selfsame.streams import host_generator

FILE = "exhibit.json"
DRAWS = 20  # of the samples, and of the users that each is set against
_RATES = np.geomspace(1e-4, 1, 81)  # false accept rates at which a curve is kept
_PAIRS = 200_000

Plain = dict[str, Any]


def drawn_accuracies(run: Run, portions: Portions, draws: int = DRAWS) -> Floats:
    """FDML's accuracy (section VII-C) for each draw: the mean over the unseen users who have enough samples."""
    if run.state.alone_NP is not None:
        raise SelfsameError("every client has a network of its own, people it has never seen have none")
    unseen = run.problem.federation.unseen
    parts = [run.embed(part) for part in unseen.x.split(256)] if len(unseen.x) else []
    emb_SD = torch.cat(parts) if parts else torch.empty(0, run.problem.world.dim)
    person_S = unseen.y.cpu().numpy()
    found = [
        portioned_accuracy(run.problem.method, emb_SD, person_S, host_generator(0, "VII-C", draw), portions).mean()
        for draw in range(draws)
    ]
    return np.array(found)


def beyond(
    folder: Path, ended: int, opened: Callable[[], Run], portions: tuple[int, ...] = (), curves: Sequence[str] = ()
) -> Plain:
    """What is asked for of a run that ended after this round: read where it is kept, measured where it is not.

    `portions` asks for the accuracy, `curves` names protocols.
    """
    asked = ([f"vii_c {' '.join(map(str, portions))}"] if portions else []) + [f"curve {name}" for name in curves]
    kept = read_json(folder / FILE) if (folder / FILE).is_file() else {}
    found: Plain = kept.get("found", {}) if kept.get("round") == ended else {}
    missing = [name for name in asked if name not in found]
    if missing:
        run = opened()
        found = found | {name: _measured(run, name) for name in missing}
        write_json(folder / FILE, {"round": ended, "found": found})
    out: Plain = {"curves": {name: found[f"curve {name}"] for name in curves}}
    return out | ({"vii_c": found[asked[0]]} if portions else {})


def _measured(run: Run, name: str) -> Plain:
    """One figure, or why there is none."""
    kind, _, rest = name.partition(" ")
    try:
        if kind == "vii_c":
            values = drawn_accuracies(run, Portions(*map(int, rest.split())))
            return {"value": float(values.mean()), "deviation": float(values.std()), "draws": len(values)}
        return _curve(run, rest)
    except (SelfsameError, Inapplicable) as reason:
        return {"refused": str(reason)}


def _curve(run: Run, protocol: str) -> Plain:
    """The highest true accept rate at each false accept rate that the trials support."""
    problem = run.problem
    alone = run.state.alone_NP is not None
    bench = Bench(problem.method, problem.federation, run.world, run.truth().detach(), run.embed, alone, 0, _PAIRS)
    scored = PROTOCOLS[protocol](bench).scored
    curve = roc(scored.genuine, scored.impostor)
    rates = _RATES[len(scored.impostor) * _RATES >= FALSE_ACCEPTS]
    return {"fpr": _few(rates), "tpr": _few([curve.tpr_at(rate) for rate in rates])}


def _few(values: Sequence[float] | Floats) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
