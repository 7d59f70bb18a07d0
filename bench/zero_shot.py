"""Encoders that nobody trained here: python bench/zero_shot.py FILE --face FILE --lfw DATA [and voices alike].

LFW: the 6,000 official pairs in ten folds, pictures of 64x64 of which the middle is kept. AudioMNIST: pairs of single
digits of the twelve unseen speakers, 1 s at 8 kHz. EER with intervals by person, for each way of preparing samples and
of comparing embeddings, over all pairs and as the mean of LFW's folds, which is how bench/adapt.py has it. Nothing is
trained, so all of these are shown and none is chosen; `--only eyes crop=56` takes some. One line of the file per
case; a case that is there is not repeated, and several processes share a file (`selfsame/runs/sharing.py`).

Where the eyes are is a setting all the same. `--only looked-for` has six places for them, with mirror images and
without, and its table chooses among them as LFW's protocol has it: for each fold by pairs of the people who are
in none of its pairs, then measured on that fold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.machine import facts
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.measure.curves import roc
from selfsame.measure.outcome import outcome
from selfsame.measure.protocols import PROTOCOLS, Bench, Measured
from selfsame.measure.trials import draw_pairs, pair_scores
from selfsame.report.evaluation import with_interval
from selfsame.runs.course import Run
from selfsame.runs.sharing import look_up, share

LFW = {"size": 64, "test": 0, "least": 0}  # everybody outside of the pairs is a client, and not asked
CASES = [
    *(("face", {"crop": crop}, how) for crop in (0, 60, 56, 52, 48) for how in ("euclidean", "cosine")),
    # Where the eyes are in the mean of LFW's pictures at 64x64.
    *(("face", {"eyes": [23, 26, 40, 26]}, how) for how in ("euclidean", "cosine")),
    *(("face", {"crop": 56, "mirror": True}, how) for how in ("euclidean", "cosine")),
    *(("voice", {"trim": trim}, "cosine") for trim in (False, True)),
]
# One pixel further apart, and one or two lower.
LOOKED_FOR = [
    ("face", {"eyes": [left, down, 63 - left, down], **mirror}, "cosine")
    for mirror in ({}, {"mirror": True}) for left in (23, 22) for down in (26, 27, 28)
]  # fmt: skip
OUTSIDE = 200_000  # pairs of people outside of a fold


def measured(args: argparse.Namespace, key: dict[str, Any]) -> dict[str, Any]:
    face, options, how = key["kind"] == "face", key["options"], key["how"]
    data, more = ("lfw", LFW) if face else ("audiomnist", {})
    path, start = (args.lfw, args.face) if face else (args.audiomnist, args.voice)
    tables = {
        "method": {"name": "fedaws", "neighbours": 1, "distance": how},
        "data": {"name": data},
        "net": {"name": "dlib-face" if face else "ge2e-voice", "start": start, **options},
        "run": {"rounds": 1, "device": args.device, "compile": "off", "precision": "float32"},
    }
    problem = prepare(from_mapping(tables), load(data, path, **more))
    run = Run(problem, begin(problem))
    bench = Bench(problem.method, problem.federation, run.world, run.truth(), run.embed, False, 0, args.trials)
    begun = time.perf_counter()
    judged = PROTOCOLS["trial list"](bench)
    found = outcome(judged, args.bootstrap, bench.rng, bench.name_of)
    kept = {name: found[name] for name in ("genuine", "impostor", "people", "eer", "auroc", "tpr_at_fpr", "folds")}
    return {
        **kept,
        "eer_by_fold": by_fold(judged),
        **({"outside_by_fold": outside(bench, judged)} if key.get("looked_for") else {}),
        "seconds": time.perf_counter() - begun,
        "machine": facts(problem.model.device),
    }


def by_fold(judged: Measured) -> list[float]:
    """The EER of each fold by itself; none where the list has no folds."""
    if judged.fold_T is None:
        return []
    score, same = judged.scored.score, judged.scored.same
    here = [judged.fold_T == fold for fold in np.unique(judged.fold_T)]
    return [roc(score[some & same], score[some & ~same]).eer for some in here]


def outside(bench: Bench, judged: Measured) -> list[float]:
    """For each fold, the EER on pairs of the listed pictures of people who are in none of its pairs."""
    listed, folds = bench.federation.trials, judged.fold_T
    assert folds is not None
    a, b = listed.index_a.numpy(), listed.index_b.numpy()
    place_S = np.unique(np.concatenate([a, b]))
    person_S, emb = bench.unseen_person(place_S), bench.unseen_emb(place_S)
    found = []
    for fold in np.unique(folds):
        here = folds == fold
        inside = np.unique(bench.unseen_person(np.concatenate([a[here], b[here]])))
        some = np.flatnonzero(~np.isin(person_S, inside))
        left, right, same = draw_pairs(person_S[some], OUTSIDE, int(fold))
        score = pair_scores(bench.method, emb, some[left], some[right])
        found.append(roc(score[same], score[~same]).eer)
    return found


def print_chosen(lines: list[dict[str, Any]]) -> None:
    """Every case, and of those with mirror images and of those without: in how many folds it is the best outside."""
    print(
        "| eyes | mirror images | outside of a fold | mean of the ten folds | all pairs [95 % by person] | chosen in |"
    )
    print("|---|---|---:|---:|---:|---:|")
    for mirror in (False, True):
        some = [line for line in lines if bool(line["key"]["options"].get("mirror")) == mirror]
        best = [min(some, key=lambda line: line["outside_by_fold"][fold]) for fold in range(10) if some]
        for line in some:
            outer, inner = (100 * statistics.fmean(line[f"{name}_by_fold"]) for name in ("outside", "eer"))
            times = f"{sum(one is line for one in best)} of 10"
            row = [str(line["key"]["options"]["eyes"]), "both" if mirror else "none", f"{outer:.2f}", f"{inner:.2f}"]
            print("|", " | ".join([*row, with_interval(line["eer"], 2), times]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--face", default="", help="converted weights of dlib-face")
    parser.add_argument("--voice", default="", help="converted weights of ge2e-voice")
    parser.add_argument("--lfw", default="", help="where LFW lies")
    parser.add_argument("--audiomnist", default="", help="where AudioMNIST lies")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument(
        "--only", nargs="+", default=[], help="of the ways to prepare samples: eyes, crop=56, ...; or looked-for"
    )
    args = parser.parse_args()
    looked_for = args.only == ["looked-for"]
    asked = [case for case in (LOOKED_FOR if looked_for else CASES) if getattr(args, case[0])]
    if args.only and not looked_for:
        asked = [case for case in asked if any(name in args.only for name in (*case[1], *_said(case[1])))]
    more = {"looked_for": True} if looked_for else {}
    keys = [
        {"kind": kind, "options": options, "how": how, "trials": args.trials, **more} for kind, options, how in asked
    ]
    share(args.file, keys, lambda key: measured(args, key))
    if looked_for:
        print_chosen([line for line in map(partial(look_up, args.file), keys) if line is not None])
        return
    print("| encoder | samples | compared by | pairs | people | EER [95 % by person] | by fold | accuracy over folds |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for key in keys:
        found = look_up(args.file, key)
        if found is None:  # another process is at it, or the time is up
            continue
        said = ", ".join(_said(key["options"]))
        folds = found["folds"]
        accuracy = f"{100 * folds['accuracy']:.2f} ± {100 * folds['standard_error']:.2f}" if folds else "-"
        pairs = found["genuine"] + found["impostor"]
        rate = with_interval(found["eer"], 2)
        each = found.get("eer_by_fold")
        mean = f"{100 * statistics.fmean(each):.2f}" if each else "-"
        row = [key["kind"], said, key["how"], f"{pairs:,}", f"{found['people']:,}", rate, mean, accuracy]
        print("|", " | ".join(row), "|")


def _said(options: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


if __name__ == "__main__":
    main()
