"""What works well: the defaults of `selfsame train` and `selfsame compare` for each data set and method.

A method's own defaults are the paper's where it names them. These are ours. Those for digits were chosen by hand on the
set's own test figures, one seed, some methods with far more tries than others (docs/results/figures.md counts them): a
demonstration, not a ranking. recipes/ holds the papers' settings for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfsame.config.recipe import Recipe, apply_settings, from_mapping, merged, read_toml
from selfsame.errors import SelfsameError

Tables = dict[str, dict[str, Any]]

_STEADY: Tables = {"local": {"lr": 0.1, "schedule": "cosine"}, "server": {"optimiser": "momentum"}}
_IMAGES: Tables = {**_STEADY, "server": {"optimiser": "momentum", "weight_decay": 5e-4}}
_CIFAR: Tables = {**_IMAGES, "augment": {"crop": 4, "flip": True}}
_FOLDER: Tables = {"run": {"rounds": 1000}, "local": {"lr": 0.03, "schedule": "cosine"}}  # 0.1 loses it on faces

DATA: dict[str, Tables] = {
    "digits": {**_IMAGES, "run": {"rounds": 600}},
    "synthetic": {**_STEADY, "run": {"rounds": 600}, "cohort": {"size": 64}},
    "mnist": {**_IMAGES, "run": {"rounds": 2000}},
    "imagefolder": {**_IMAGES, **_FOLDER, "augment": {"crop": 2, "flip": True}},
    "audiofolder": {**_STEADY, **_FOLDER},
    "cifar10": {**_CIFAR, "run": {"rounds": 20000}},
    "cifar100": {**_CIFAR, "run": {"rounds": 30000}, "cohort": {"size": 10, "sampling": "round-robin"}},
}

_SMALL_STEPS: Tables = {  # FedMetric's loss has no scale of its own, so momentum and decay do it harm
    "method": {"squared": False, "reduction": "mean", "radius": "before"},
    "local": {"lr": 0.03},
    "server": {"optimiser": "average", "weight_decay": 0.0},
}

# With k near the number of classes (8) is least where they gather in two opposite points.
_FEW_CLASSES: Tables = {"method": {"neighbours": 1}}

# Devices return gradients that the server's Adam scales: the paper's, with PyTorch's numbers where it has none.
_FDML: Tables = {
    "local": {"batch": 8, "lr": 1.0, "schedule": "constant"},
    "server": {"optimiser": "adam", "lr": 1e-4, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0},
}

METHODS: dict[str, Tables] = {"fdml": _FDML}  # whatever the data

METHOD: dict[tuple[str, str], Tables] = {
    ("digits", "fedaws"): _FEW_CLASSES,
    ("mnist", "fedaws"): _FEW_CLASSES,
    ("cifar10", "fedaws"): _FEW_CLASSES,
    ("digits", "feduv"): {"method": {"code_length": 63}},
    ("digits", "feduv-negative"): {"method": {"code_length": 63}},
    ("digits", "fedhide"): {"method": {"alpha": 0.01, "neighbours": 5}},
    ("digits", "fedcrowd"): {"local": {"lr": 0.03}},  # of so few, the second order is a coarse picture
    ("digits", "deepsvdd"): {
        "net": {"bias": False},
        "local": {"lr": 0.01},
        "server": {"optimiser": "average", "weight_decay": 0.0},
    },
    ("digits", "fedmetric"): _SMALL_STEPS,
    ("digits", "fedmetric-true"): _SMALL_STEPS,
    ("digits", "fedmetric-pos"): {**_SMALL_STEPS, "method": {"reduction": "mean"}},
}


# A network that is given knows most already. Learning rates of the last layer, of adapters and of all layers, as chosen
# on people set apart for a face encoder (docs/results/pretrained.md) with server momentum.
_RATES: dict[str, tuple[float, float, float]] = {
    "fedcrowd": (0.001, 0.003, 0.0001),
    "softmax": (0.001, 0.003, 0.0003),
    "fdml": (0.1, 0.3, 0.03),
    "fedhide": (0.03, 0.3, 0.01),
    "fedgn": (0.03, 0.3, 0.01),
    "fedcs": (0.03, 0.3, 0.01),
    "feduv": (0.1, 0.01, 0.001),
}
_CAREFUL = (0.001, 0.01, 0.001)  # FedAwS's, and of methods that nobody has tried
_GIVEN: Tables = {"run": {"rounds": 300}, "local": {"batch": 8, "schedule": "cosine"}, "server": _STEADY["server"]}


def preset(method: str, data: str, net: Mapping[str, Any] | None = None) -> Tables:
    """The tables to start from for a method on a data set; `net`: what is asked of the network."""
    asked = net or {}
    if not asked.get("start"):
        return merged(DATA.get(data, {}), METHODS.get(method, {}), METHOD.get((data, method), {}))
    last, adapters, every = _RATES.get(method, _CAREFUL)
    kept = asked.get("train") in ("last", ["last"], ("last",))
    rate = adapters if asked.get("adapters") else last if kept else every
    own: Tables = {"method": {"normalise": True}} if method == "fdml" else {}
    return merged(_GIVEN, {"local": {"lr": rate}}, own, {"method": METHOD.get((data, method), {}).get("method", {})})


def make_recipe(
    method: str,
    base: Path | None,
    given: Mapping[str, Any],
    settings: Sequence[str] = (),
    advice: Mapping[str, Any] | None = None,
) -> Recipe:
    """A method's recipe: the preset, or the file `base`; over it the `given` tables, then key=value settings.

    `advice` lies over the preset and under all that is given.
    """
    tables = read_toml(base) if base is not None else {}
    tables.pop("paper", None)
    if any(tables.pop(key, None) is not None for key in ("variant", "grid", "seeds", "quoted", "oracle")):
        raise SelfsameError(f"{base}: has variants; run it with `selfsame recipe {base}`")
    stored = from_mapping(tables)
    data = given.get("data", {}).get("name") or stored.data.name or "digits"
    own = {"method": {"name": method}, "data": {"name": data}}
    lowest = preset(method, data, apply_settings(given, settings).get("net")) if base is None else tables
    return from_mapping(apply_settings(merged(lowest, advice or {}, own, given), settings))
