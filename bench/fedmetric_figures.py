"""FedMetric's Figs. 2 and 3, as validation reads it: python bench/fedmetric_figures.py curves|table|draw FILE.

curves   Fig. 2: one-class AUROC over the weight lambda of the negative loss, with proxy and with true centres, beside
         positives alone. Fig. 3: over s, the distance of the proxy centre in radii, at the lambda that was chosen;
         s = 0 shares true centres. Three seeds. The reading and all else are the setting of `proxy` that is best in
         the file by what was set apart (bench/fedmetric.py choose): nothing is chosen here, every point is of the test.
table    what is in the file.
draw     both figures, as --picture.

Every finished run is a line of the file; several processes share it (`selfsame/runs/sharing.py`).

    python bench/fedmetric_figures.py curves mnist.jsonl --data mnist --path DATA --rounds 900
    python bench/fedmetric_figures.py draw mnist.jsonl --data mnist --rounds 900 --picture fedmetric.svg
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from pathlib import Path

from fedmetric import RECIPE, Data, Setting, Tables, chosen, options, run_once, spread

from selfsame.runs.sharing import finished, share

LAMBDAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # the paper's axis goes from 0.1 to 1.0
SCALES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
_TRUE = {"method.name": "fedmetric-true"}
_POS = ("method.centre_rate", "method.reduction", "method.unit_length", "local.lr")  # that pos has too


def cases(best: Setting) -> list[tuple[str, str, float, Setting]]:
    """(figure, curve, place on the axis, setting) of every point."""
    alone = {key: best[key] for key in _POS if key in best} | {"method.name": "fedmetric-pos"}
    found: list[tuple[str, str, float, Setting]] = [("2", "pos", 0.0, alone)]
    for (curve, name), weight in product((("proxy", {}), ("true", _TRUE)), LAMBDAS):
        found.append(("2", curve, weight, best | name | {"method.negative_weight": weight}))
    for scale in SCALES:
        found.append(("3", "proxy", scale, best | ({"method.scale": scale} if scale else _TRUE)))
    return found


def key_of(args: argparse.Namespace, figure: str, curve: str, at: float) -> Tables:
    return {"phase": "curve", "data": args.data, "rounds": args.rounds, "figure": figure, "method": curve, "at": at}


def curves(args: argparse.Namespace, best: Setting) -> None:
    data = Data(args, choosing=False)
    known = {(figure, curve, at): setting for figure, curve, at, setting in cases(best)}
    keys = [{**key_of(args, *case), "seed": seed} for seed, case in product(range(args.seeds), known)]
    share(args.file, keys, lambda key: run_once(args, data, key, known[key["figure"], key["method"], key["at"]]))


def points(args: argparse.Namespace, best: Setting) -> dict[tuple[str, str], dict[float, list[float | None]]]:
    """One-class AUROC of every seed, by place, of every curve."""
    lines, found = finished(args.file), {}
    for figure, curve, at, _ in cases(best):
        wanted = key_of(args, figure, curve, at).items()
        values = [line["one_class_auroc"] for line in lines if wanted <= line["key"].items()]
        if values:
            found.setdefault((figure, curve), {})[at] = values
    return found


def table(args: argparse.Namespace, best: Setting) -> None:
    print("| figure | curve | at | one-class AUROC | seeds |")
    print("|---|---|---:|---:|---:|")
    for (figure, curve), places in points(args, best).items():
        for at, values in places.items():
            print(f"| {figure} | {curve} | {at:g} | {spread(values)} | {len(values)} |")


def draw(args: argparse.Namespace, best: Setting) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found = points(args, best)
    _, panels = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for panel, figure, label in zip(
        panels, "23", ("lambda, weight of negatives", "s, distance of a proxy"), strict=True
    ):
        for (of, curve), places in found.items():
            if of != figure:
                continue
            known = {at: [100 * v for v in values if v is not None] for at, values in places.items()}
            known = {at: values for at, values in known.items() if values}
            middle = [statistics.mean(values) for values in known.values()]
            if curve == "pos":
                panel.axhline(middle[0], color="#37474f", linestyle="--", label="positives alone")
                continue
            (line,) = panel.plot(list(known), middle, marker="o", label=f"{curve} centres")
            low, high = ([f(values) for values in known.values()] for f in (min, max))
            panel.fill_between(list(known), low, high, color=line.get_color(), alpha=0.2)
        panel.set(xlabel=label, title=f"Fig. {figure}")
        panel.legend()
    panels[0].set_ylabel("one-class AUROC, %")
    pyplot.savefig(args.picture, metadata={"Date": None})


def main() -> None:
    parser = options(("curves", "table", "draw"), __doc__)
    parser.add_argument("--picture", type=Path, default=Path("fedmetric.svg"))
    args = parser.parse_args()
    args.recipe = RECIPE.get(args.data, args.data)
    line = chosen(args, "proxy")
    if line is None:
        raise SystemExit(f"{args.file}: no setting of proxy was chosen; bench/fedmetric.py choose does that")
    {"curves": curves, "table": table, "draw": draw}[args.what](args, line["setting"])


if __name__ == "__main__":
    main()
