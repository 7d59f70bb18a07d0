"""What a run's folder gives for devices: its last state, and the vector that one of its clients keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.device.card import Raw
from selfsame.device.embedder import Embedder
from selfsame.errors import SelfsameError
from selfsame.runs.course import Run
from selfsame.runs.run import open_run

_NAMED = 5  # clients that an error names
_COMPARED = 8  # samples by which a model is known to be of a run
_NEAR = 0.25  # of a length: int8 weights move embeddings less, another client's network moves them more


def read_run(folder: Path, path: Path | None = None, trust_code: bool = False, best: bool = False) -> Run:
    """The run's last state, or its best one, on the CPU, in the precision of its parameters."""
    return open_run(folder, path, "cpu", exact=True, trust_code=trust_code, best=best)


def client_vector(
    folder: Path,
    client: int | str,
    opened: Embedder,
    raw: Sequence[Raw],
    trust_code: bool = False,
    data: Path | None = None,
) -> NDArray[np.float32]:
    """The vector that a run's client keeps, by number or name: prototype, codeword, centre, or its class's embedding.

    It means nothing to another network, so the model must embed the first samples as the run does.
    """
    run = read_run(folder, data, trust_code=trust_code)
    problem, card = run.problem, opened.card
    client = _number(run, client)
    same = (problem.method.name, problem.federation.name, problem.world.dim) == (card.method, card.data, card.width)
    few = raw[:_COMPARED]
    if not same or sum(_apart(run, client, opened, sample) for sample in few) > _NEAR * len(few):
        raise SelfsameError(f"{folder}: the model is not of this run, or not of this client")
    if run.recipe.net.whitened:
        raise SelfsameError(f"{folder}: its clients' vectors are of the network before it was whitened; give samples")
    if run.enrolled is not None:
        raise SelfsameError(f"{folder}: a run on devices; its clients' vectors are there and nowhere else")
    truth_RD = run.truth()
    row = client if problem.method.row == "client" else int(problem.world.class_of_N[client])
    vector: NDArray[np.float32] = truth_RD[row].detach().cpu().float().numpy()
    return vector


def _number(run: Run, client: int | str) -> int:
    """The number of a client that is given by it, or by the name of the person."""
    present, federation = run.state.present, run.problem.federation
    class_N = federation.class_of_N[:present].tolist()
    names = [federation.class_names[one] if one < len(federation.class_names) else "" for one in class_N]
    if isinstance(client, str) and names.count(client) == 1:
        return names.index(client)
    try:
        number = int(client)
    except ValueError:
        number = -1
    if not 0 <= number < present:
        few = [f"{place} {name}" for place, name in enumerate(names) if name][:_NAMED]
        known = f" ({', '.join(few)}{', ...' if present > len(few) else ''})" if few else ""
        raise SelfsameError(f"--client: the run has clients 0 to {present - 1}{known}, got {client}")
    return number


def _apart(run: Run, client: int, opened: Embedder, sample: Raw) -> float:
    """How far apart the model and the run's network embed a sample, relative to the latter's length."""
    one_D = run.embed(torch.from_numpy(sample[None]), client)[0].cpu().double().numpy()
    return float(np.linalg.norm(opened.embed(sample[None])[0] - one_D) / max(float(np.linalg.norm(one_D)), 1e-12))
