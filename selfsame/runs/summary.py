"""A finished run as a reader sees it: the view that tables and reports are drawn from, kept in the run's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from selfsame.engine import checkpoint
from selfsame.engine.setup import resolve
from selfsame.engine.joint import privacy_spent
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods.fedhide import FedGN
from selfsame.methods.fedmetric import FedMetric, exposure_ratio_log10
from selfsame.config.recipe import Recipe, differences, from_mapping, read_toml, to_toml
from selfsame.report.figures import project
from selfsame.report.view import Picture, RunView
from selfsame.report.words import privacy_words
from selfsame.runs.run import Run
from selfsame.measure.looks import pair_scores
from selfsame.measure.scores import Roc, auroc, eer, thin
from selfsame.methods.wire import Sight

_WHO = {
    Sight.DEVICE: "nobody: stays on the device",
    Sight.ENCLAVE: "attested enclave",
    Sight.SERVER: "server",
    Sight.PUBLIC: "everyone",
}
_COSINE = FedGN()  # any method that compares by angle
_PICTURED = 600  # samples in the picture of the embedding space
_PICTURED_CLASSES = 100


def wire_rows(run_or_wire: Run | object) -> list[tuple[str, str, str, str]]:
    """The wire table in words."""
    wire = run_or_wire.problem.method.wire if isinstance(run_or_wire, Run) else run_or_wire
    return [(name, way, _WHO[sight], what) for name, way, sight, what in wire.rows()]  # type: ignore[attr-defined]


def left_the_device(run: Run) -> list[str]:
    """What left and who sees it, e.g. 'proxy -> everyone'."""
    return [f"{name} -> {who}" for name, way, who, _ in wire_rows(run) if way == "up"]


def view(run: Run, picture: bool = True, how: str = "pca") -> RunView:
    """Everything a table or a report needs of this run."""
    drawn = {}
    for name, (fpr, tpr) in run.curves.items():
        few = thin(Roc(np.array(fpr), np.array(tpr), np.zeros(len(fpr))))
        drawn[name] = (few.fpr.tolist(), few.tpr.tolist())
    final = {k: v for k, v in run.final.items() if k not in ("round", "seconds")}
    notes = list(run.problem.federation.notes)
    facts = run.facts | ({"data notes": "; ".join(notes)} if notes else {})
    if len(run.problem.federation.unseen.x):
        facts["without a network"] = _raw(run)
    spent = privacy_spent(run.problem, run.state)
    if spent is not None:
        facts["privacy"] = privacy_words(spent)
    if run.leakage is not None:
        facts["attacker"] = run.leakage.how
        if run.leakage.cosine_mean is not None:
            facts["cosine of true and shared vectors"] = (
                f"{run.leakage.cosine_mean:.3f} +- {run.leakage.cosine_std or 0:.3f}"
            )
    if isinstance(run.problem.method, FedMetric):
        power = exposure_ratio_log10(1.0, run.problem.method.scale, run.problem.world.dim)
        facts["exposure ratio (3.2)"] = f"10^{power:.1f}"
    return RunView(
        title=run.title,
        method=run.recipe.method.name,
        history=run.history,
        final=final,
        left=left_the_device(run),
        wire=wire_rows(run),
        seconds=run.seconds,
        roc=drawn,
        picture=_picture(run, how)
        if picture and run.history and not any("diverged" in w for w in run.warnings)
        else None,
        warnings=run.warnings,
        recipe=to_toml(run.recipe),
        facts=facts,
    )


def _raw(run: Run) -> str:
    """How well the raw samples of unseen people tell them apart by cosine: what a network has to beat."""
    federation = run.problem.federation
    genuine, impostor = pair_scores(_COSINE, lambda x: federation.scale(x).flatten(1), federation.unseen)
    rate = eer(genuine, impostor)[0]
    return f"raw unseen samples by cosine: AUROC {100 * auroc(genuine, impostor):.1f} %, EER {100 * rate:.1f} %"


def _picture(run: Run, how: str) -> Picture | None:
    """Samples of seen and unseen classes with the true and the shared vectors, in two dimensions."""
    problem, state = run.problem, run.state
    if state.alone_NP is not None:
        return None  # every client has a space of its own
    test, unseen = problem.federation.test, problem.federation.unseen
    head = problem.model.head_views(state.theta_P)
    truth = problem.method.truth(state.own, state.server, head)[:_PICTURED_CLASSES]
    exposed = problem.method.exposed(state.server, head)
    known = test.y < _PICTURED_CLASSES
    parts, labels, fresh = [], [], []
    offset = problem.world.classes
    for x, y, new in ((test.x[known], test.y[known], False), (unseen.x, unseen.y + offset, True)):
        step = max(1, -(-len(x) // (_PICTURED if not new else _PICTURED // 3)))
        if len(x):
            parts.append(run.embed(x[::step]))
            labels += y[::step].tolist()
            fresh += [new] * len(y[::step])
    if not parts:
        return None

    def plain(t: torch.Tensor) -> np.ndarray:
        return problem.method.place(t.detach()).double().cpu().numpy()

    return project(
        plain(torch.cat(parts)), plain(truth), None if exposed is None else plain(exposed[: len(truth)]),
        label=labels, unseen=fresh, how=how,
    )  # fmt: skip


def keep_view(run_view: RunView, folder: Path) -> None:
    """Write the view beside the run."""
    write(folder / "result.json", json.dumps(run_view.to_dict()).encode())


def read_view(folder: Path) -> RunView:
    """The view of a finished run."""
    path = folder / "result.json"
    try:
        return RunView.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SelfsameError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SelfsameError(f"{path}: damaged; delete it and resume the run") from None


@dataclass(frozen=True)
class Standing:
    """How far the run of a recipe has come in its folder."""

    there: bool = False
    round: int = 0
    differs: tuple[str, ...] = ()  # the keys in which the run that lies there is another one
    view: RunView | None = None  # of a run that has ended, well or not

    @property
    def words(self) -> str:
        """For a list of runs."""
        if not self.there:
            return "not begun"
        if self.differs:
            return f"another recipe lies there: {', '.join(self.differs)}"
        if self.view is None:
            return f"stopped at round {self.round:,}"
        return "diverged" if self.view.diverged else "done"


def standing(folder: Path, recipe: Recipe) -> Standing:
    """What the folder holds of this recipe, read without the data."""
    if not (folder / "recipe.toml").is_file():
        return Standing()
    stored, wanted = from_mapping(read_toml(folder / "recipe.toml")), resolve(recipe)
    filled_in = set() if "features" in wanted.net.options else {"net.features"}  # the data set told the network
    filled_in |= {"split.most"} if wanted.split.epsilon else set()  # the budget said how many rounds
    differs = [key for key in differences(stored, wanted) if key not in filled_in]
    saved = folder / "checkpoint" / "state.safetensors"
    done = checkpoint.peek(saved)["round"] if saved.is_file() else 0
    shown = read_view(folder) if (folder / "result.json").is_file() else None
    ended = shown is not None and (done >= stored.run.rounds or shown.diverged)
    return Standing(True, done, tuple(differs), shown if ended else None)
