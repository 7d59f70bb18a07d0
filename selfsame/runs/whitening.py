"""A run's network whitened by one sum over its devices (`methods.within`): a new run, measured before and after.

Nothing is trained. The owners' vectors that training left are of the network before, so the templates of the new run
are what its clients would enrol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe, to_toml
from selfsame.data import Federation, Samples
from selfsame.data.federation import SAMPLES
from selfsame.data.fingerprint import keep_fingerprint
from selfsame.data.noisy import in_noise
from selfsame.engine import checkpoint
from selfsame.engine.starting import KEPT, keep_start
from selfsame.errors import SelfsameError
from selfsame.files import append_record, write
from selfsame.measure.outcome import Plain
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable
from selfsame.methods.moments import numbers_of
from selfsame.methods.within import least_devices, summand, whitening
from selfsame.nets.whitened import MATRIX, MEAN
from selfsame.runs.course import Run
from selfsame.runs.elsewhere import changed
from selfsame.runs.run import open_run
from selfsame.runs.summary import keep_all

_AT_ONCE = 256  # samples
_ASKED = ("trial list", "unseen pairs", "unseen, enrolled", "test samples")
Tick = Callable[[str], None]  # told what is done next


@dataclass(frozen=True)
class SumAsked:
    """What devices are asked for: so many numbers of each of them, and nothing of fewer than `least` is released."""

    devices: int
    numbers: int
    least: int


def terms_of(run: Run) -> SumAsked:
    """The terms of a run's sum, or one line that says why there can be none."""
    problem, where = run.problem, run.folder or run.title
    if run.state.alone_NP is not None:
        raise SelfsameError(f"{where}: has a network for each client, and none that a sum over clients fits")
    if run.folder is not None and (run.folder / SAMPLES).is_file():
        raise SelfsameError(f"{where}: a run on devices, where the samples have stayed; whiten a simulated one")
    if run.recipe.net.whitened:
        raise SelfsameError(f"{where}: is whitened already; whiten the run that it was made of")
    devices, width = run.state.present, problem.world.dim
    least = least_devices(width, problem.federation.count_N[:devices])
    if not least:
        raise SelfsameError(f"{where}: nobody has two samples; what somebody's samples differ in is not to be seen")
    least = max(least, 0 if problem.sums is None else problem.sums.least)
    if devices < least:
        raise SelfsameError(
            f"{where}: {devices} devices are too few for a sum of embeddings of width {width}, which would tell who is "
            f"in it; {least} like these are needed"
        )
    return SumAsked(devices, numbers_of(width), least)


def added_up(run: Run, federation: Federation, devices: int, noise: float = 0.0) -> Tensor:
    """The sum of what the first `devices` clients compute from their own training samples, (V,) in double precision."""
    return torch.stack([summand(emb_SD) for emb_SD in embedded_clients(run, federation, devices, noise)]).sum(0)


def embedded_clients(run: Run, federation: Federation, devices: int, noise: float = 0.0) -> Iterator[Tensor]:
    """The embeddings of each client's training samples, on the CPU; with noise in decibels of those in it as well."""
    for client, count in enumerate(federation.count_N[:devices].tolist()):
        who_1 = torch.tensor([client], device=federation.count_N.device)
        index_B = torch.arange(count, device=who_1.device)
        parts = [federation.source.rows(who_1, part_B[None])[0] for part_B in index_B.split(_AT_ONCE)]
        if noise:
            draw = torch.Generator().manual_seed(client)
            parts += [in_noise(raw, noise, draw) for raw in parts]
        yield torch.cat([run.embed_each(raw, None).cpu() for raw in parts])


def whiten_run(
    run: Run,
    recipe: Recipe,
    folder: Path,
    share: float,
    tick: Tick,
    noise: float = 0.0,
) -> Run:
    """Put the run with the layer behind its network into an empty folder, and open it from there.

    `recipe` is the run's as it is to be kept. With `noise` devices count their samples twice: as they are, and in noise
    so many decibels below the largest value of each.
    """
    terms = terms_of(run)
    problem, state = run.problem, run.state
    tick("adding up")
    sum_V = added_up(run, problem.federation, terms.devices, noise)
    mean_D, matrix_DD = whitening(sum_V, problem.world.dim, terms.devices, share)
    part = replace(recipe.net, whitened=share, whitened_noise=noise)
    made = replace(recipe, net=part, title=f"{run.title}, whitened")
    first = problem.model.net_views(problem.model.first_here)
    write(folder / "recipe.toml", to_toml(made).encode())
    keep_fingerprint(problem.federation, folder)
    keep_start({**first, MEAN: mean_D.float(), MATRIX: matrix_DD.float()}, recipe.net.digest, folder / KEPT)
    checkpoint.save_state(state, folder / "checkpoint" / "state.safetensors")
    device = problem.recipe.run.device
    # It names no other code than the run does, which was trusted, or than the user has named.
    new = open_run(folder, None, device, trust_code=True, federation=problem.federation)
    checkpoint.save_model(replace(new.problem, recipe=made), new.state.theta_P, folder / "model.safetensors")
    tick("reporting")
    report(new)
    return new


def report(run: Run) -> None:
    """The figures, the view and the report of a whitened run, in its folder."""
    assert run.folder is not None
    found = run.evaluate(curves=True)
    run.draw(found)
    run.history = [{"round": run.state.round, **found.figures, "seconds": run.seconds}]
    append_record(run.folder / "metrics.jsonl", run.history[0])
    keep_all(run, run.folder)


def compared(before: Run, after: Run, trials: int, bootstrap: int, seed: int, noise: float = 0.0) -> list[Plain]:
    """EER by both networks on every protocol that the data allow, with intervals by person; then in noise as well."""
    out = []
    levels = (0.0, noise) if noise else (0.0,)
    for level, (federation, names) in product(levels, list(_judged_by(before.problem.federation))):
        # One bench of each for all protocols, since it embeds samples once.
        benches = [_bench(one, federation, seed, trials, level) for one in (before, after)]
        for name in names:
            protocol = "test samples" if name == "validation samples" else name
            said = f"{name}, in noise" if level else name
            try:
                measured = [replace(PROTOCOLS[protocol](bench), name=said) for bench in benches]
            except Inapplicable:
                continue
            out.append(changed(measured[0], measured[1], bootstrap, benches[0]))
    return out


def _judged_by(federation: Federation) -> Iterator[tuple[Federation, tuple[str, ...]]]:
    yield federation, _ASKED
    if len(federation.validation.y):
        held = federation.validation
        yield replace(federation, test=held, unseen=Samples(held.x[:0], held.y[:0])), ("validation samples",)


def _bench(run: Run, federation: Federation, seed: int, trials: int, noise: float) -> Bench:
    """In noise all samples are; a client's template is not."""
    draw = torch.Generator().manual_seed(seed)  # the same noise for both networks, which are asked for the same samples

    def embed(raw: Tensor, client: int | None = None) -> Tensor:
        return run.embed(in_noise(raw, noise, draw) if noise else raw, client)

    return Bench(run.problem.method, federation, run.world, run.truth().detach(), embed, False, seed, trials)
