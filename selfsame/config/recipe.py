"""A recipe: everything that defines a run, as frozen dataclasses, read from and written to TOML."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from selfsame.errors import SelfsameError
from selfsame.fields import at_least, nearest, one_of, read_fields, short_name, typed
from selfsame.files import read_text

SAMPLING = ("all", "uniform", "round-robin", "groups")
AGGREGATIONS = ("clear", "masked", "enclave")
WEIGHTS = ("samples", "uniform")
VECTORS = ("drawn", "enrolled")
SCHEDULES = ("constant", "step", "cosine", "inverse")
OPTIMISERS = ("average", "momentum", "adam", "adagrad")
ENGINES = ("auto", "cohort", "reference")
PRECISIONS = ("auto", "float32", "float64", "bfloat16")
SWITCH = ("auto", "on", "off")
STRATEGIES = ("uc", "as")


def _least(where: str, part: object, **least: float) -> None:
    for name, number in least.items():
        at_least(f"{where}.{name}", getattr(part, name), number)


def _share(where: str, part: object, interval: str, *names: str) -> None:
    """Refuse what is not from 0 to 1; a round bracket of the interval leaves out its end."""
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (value == 0 and interval[0] == "(") or (value == 1 and interval[-1] == ")"):
            raise SelfsameError(f"{where}.{name}: must be in {interval}, got {value}")


@dataclass(frozen=True)
class RunPart:
    """How long, how often to look, and on what."""

    rounds: int = 600  # how many rounds are trained
    seed: int = 0  # of everything random but secrets
    eval_every: int = 0  # rounds between two evaluations; 0: ten times a run
    checkpoint_every: int = 0  # rounds between two checkpoints; 0: at every evaluation
    engine: str = "auto"  # reference: one client after another; cohort, which auto means: all at once
    device: str = "auto"  # cpu, cuda, cuda:1 and so on; auto: CUDA where there is one
    precision: str = "auto"  # of the network's passes; auto: bfloat16 on CUDA, float32 elsewhere
    # on: torch.compile and CUDA graphs; graphs: the latter alone; auto: on, on CUDA. On a CPU, on is C code for small
    # networks, and auto the same where a training is long enough to gain.
    compile: str = "auto"
    shard_tables: bool = False  # with torchrun: each process keeps a part of the class embeddings
    patience: int = 0  # evaluations without a better EER on validation samples, after which training ends; 0: any
    training_figures: bool = False  # record P@1 on 2,000 of the clients' own samples as well

    def __post_init__(self) -> None:
        _least("run", self, rounds=1, eval_every=0, checkpoint_every=0, patience=0)
        one_of("run.engine", self.engine, ENGINES)
        one_of("run.precision", self.precision, PRECISIONS)
        one_of("run.compile", self.compile, (*SWITCH, "graphs"))


@dataclass(frozen=True)
class NamedPart:
    """A registered thing and its own options (the option names are checked where they are known)."""

    name: str = ""  # one that is known, or package.module:Name of your own
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPart(NamedPart):
    """The data set, where its files lie, and its options."""

    path: str = ""  # the folder with its files


@dataclass(frozen=True)
class NetPart(NamedPart):
    """The embedding network; an empty name and width 0 mean the data set's own choice."""

    width: int = 0  # of the embedding; 0: the data set's
    start: str = ""  # weights to begin with: a safetensors or .pt file, or the folder of a run
    digest: str = ""  # SHA-256 of that file; filled in when it is read, and checked where it is given
    rename: dict[str, str] = field(default_factory=dict)  # beginnings of the file's names, and what they are here
    skip: tuple[str, ...] = ()  # patterns of names: in the file they are not read, in the network they stay as drawn
    train: tuple[str, ...] = ()  # what learns: all, last, norms or patterns of names; none: all, or adapters alone
    adapters: int = 0  # rank of what learns beside each other matrix, added to it in the exported network; 0: none
    keep: float = 0.0  # weight of the pull towards the embeddings of the network that training began with
    vectors: str = ""  # how those of people begin: drawn, or enrolled with the first network; "": the method's choice
    whitened: float = 0.0  # in runs that `selfsame whiten` has made: its --share; 0: no layer behind the network
    whitened_noise: float = 0.0  # and its --noise: the decibels that samples were added up in as well; 0: as they are

    def __post_init__(self) -> None:
        _least("net", self, width=0, adapters=0, keep=0, whitened=0, whitened_noise=0)
        if self.vectors:
            one_of("net.vectors", self.vectors, VECTORS)

    @property
    def started(self) -> bool:
        """Whether the network begins with given weights."""
        return bool(self.start or self.digest)

    @property
    def anchored(self) -> bool:
        """Whether training needs more of the first network than the parameters that learn."""
        constant = bool(self.adapters or self.whitened or (self.train and "all" not in self.train))
        return constant or bool(self.keep) or self.vectors == "enrolled"

    @property
    def merged(self) -> NetPart:
        """The same network with nothing constant in it, as it is when training has ended."""
        return dataclasses.replace(self, start="", train=(), adapters=0, keep=0.0, vectors="")


@dataclass(frozen=True)
class CohortPart:
    """Who takes part in a round."""

    size: int = 0  # clients in a round; 0: everybody
    sampling: str = "uniform"  # groups: always the same `size` or more together, in turn
    weights: str = "samples"  # how clients weigh: by their samples, n_k / n, or uniform
    cap: int = 0  # the most samples that weigh; 0: any, on real devices 1,000
    dropout: float = 0.0  # the chance that a selected client does not answer; in a split round: not with its gradient
    late: float = 0.0  # the share of clients that join only at round `join_round`
    join_round: int = 0  # when the late ones join

    def __post_init__(self) -> None:
        _least("cohort", self, size=0, join_round=0, cap=0)
        _share("cohort", self, "[0, 1)", "dropout", "late")
        one_of("cohort.sampling", self.sampling, SAMPLING)
        one_of("cohort.weights", self.weights, WEIGHTS)
        if self.sampling == "all" and self.size:
            raise SelfsameError("cohort.size: leave it 0 when cohort.sampling is 'all'")


@dataclass(frozen=True)
class SumsPart:
    """How updates are added up, and so what the server sees of each. Zero stands for a choice by the rest."""

    aggregation: str = "clear"  # masked: helpers take masks off the sum; enclave: attested code adds up
    least: int = 0  # answers of a group without which nothing of it is released; 0: half of the group
    clip: float = 0.0  # the longest update; 0: as long as the first network
    reach: float = 0.0  # the largest number of an update, where they are masked; 0: the clip
    bits: int = 32  # of a masked number, 16 or 32
    noise: float = 0.0  # deviation of the Gaussian noise on the sum, in clips
    quiet: float = 0.0  # the chance that a device sends zero in place of its update, which nobody can tell
    stand_ins: int = 0  # the most rounds in which a device's last update stands in for it; 0: any

    def __post_init__(self) -> None:
        one_of("sums.aggregation", self.aggregation, AGGREGATIONS)
        _least("sums", self, least=0, clip=0, reach=0, noise=0, stand_ins=0)
        _share("sums", self, "[0, 1)", "quiet")
        if self.bits not in (16, 32):
            raise SelfsameError(f"sums.bits: must be 16 or 32, got {self.bits}")

    @property
    def summed(self) -> bool:
        """Whether nobody sees one device's update."""
        return self.aggregation != "clear"


@dataclass(frozen=True)
class SplitPart:
    """Rounds whose loss is computed in the enclave, from `cohort.size` devices' embeddings (FDML, Algorithm 3)."""

    over: float = 1.0  # k: so many times cohort.size devices are asked; the first cohort.size embeddings are used
    response: float = 1.0  # rate_p: the share of cohort.size whose gradients are waited for
    strategy: str = "uc"  # when time is up before these are there: "uc" goes on without, "as" abandons the round
    ready: float = 1.0  # the chance that a device is charging, on an unmetered network and idle in a round
    registration: int = 1  # rounds for which a registration is valid; a device registers whenever it is ready
    lost: float = 0.0  # the chance that a selected device never sends its embeddings; for gradients: cohort.dropout
    embedding_wait: float = 0.0  # time-out in mean answer times; 0: until every device has answered that ever will
    gradient_wait: float = 0.0  # the same for gradients
    epsilon: float = 0.0  # privacy budget of a device over the whole training, at `delta`; 0: none
    delta: float = 1e-5  # of that budget
    most: int = 0  # rounds that a device takes part in before its budget is spent; 0: any, or as epsilon says

    def __post_init__(self) -> None:
        _least("split", self, over=1, registration=1, embedding_wait=0, gradient_wait=0, most=0, epsilon=0)
        one_of("split.strategy", self.strategy, STRATEGIES)
        _share("split", self, "[0, 1)", "lost")
        _share("split", self, "(0, 1]", "response", "ready")
        _share("split", self, "(0, 1)", "delta")


@dataclass(frozen=True)
class LocalPart:
    """Training on the device: SGD for some steps, or for some passes over the local data."""

    steps: int = 1  # of SGD in a round
    epochs: int = 0  # above 0: passes over the local data in place of steps
    batch: int = 16  # samples in a step
    lr: float = 0.1  # learning rate of a step
    schedule: str = "constant"  # of the learning rate over the rounds
    decay: float = 0.1  # step: the factor; inverse: lr / (1 + decay * round)
    every: int = 0  # step: rounds between two steps (0: a third of the run)

    def __post_init__(self) -> None:
        _least("local", self, steps=1, epochs=0, batch=1, lr=0, decay=0, every=0)
        one_of("local.schedule", self.schedule, SCHEDULES)


@dataclass(frozen=True)
class ServerPart:
    """What the server does with the averaged update."""

    optimiser: str = "average"  # average: the update as it is
    lr: float = 1.0  # learning rate of the server's step
    momentum: float = 0.9  # of momentum; beta1 of adam
    nesterov: bool = True  # whether momentum looks ahead
    weight_decay: float = 0.0  # average, momentum: as in each client's step; adam, adagrad: decoupled
    beta2: float = 0.99  # of adam
    epsilon: float = 1e-3  # of adam and adagrad: added to the root of the second moment
    schedule: str = "constant"  # of the learning rate over the rounds
    decay: float = 0.1  # as local.decay
    every: int = 0  # as local.every
    plain: tuple[str, ...] = ()  # patterns of names: these tensors take the update as it is, whatever the optimiser
    plain_lr: float = 1.0  # learning rate of these; it follows the same schedule

    def __post_init__(self) -> None:
        _least("server", self, lr=0, weight_decay=0, decay=0, every=0)
        at_least("server.epsilon", self.epsilon, 0, strict=True)
        at_least("server.plain_lr", self.plain_lr, 0, strict=True)
        if self.plain and not self.lr:
            raise SelfsameError("server.lr: must be above 0 beside server.plain, got 0.0")
        _share("server", self, "[0, 1)", "momentum", "beta2")
        one_of("server.optimiser", self.optimiser, OPTIMISERS)
        one_of("server.schedule", self.schedule, SCHEDULES)


@dataclass(frozen=True)
class AugmentPart:
    """Random changes to training images, drawn anew for every sample of every batch."""

    crop: int = 0  # pixels of padding before a random crop back to size
    flip: bool = False  # left-right
    rotation: float = 0.0  # degrees to either side

    def __post_init__(self) -> None:
        _least("augment", self, crop=0)
        if not 0 <= self.rotation <= 180:
            raise SelfsameError(f"augment.rotation: must be in [0, 180] degrees, got {self.rotation}")


@dataclass(frozen=True)
class Recipe:
    """One run, whole."""

    method: NamedPart = NamedPart("fedhide")
    data: DataPart = DataPart("digits")
    net: NetPart = NetPart()
    run: RunPart = RunPart()
    cohort: CohortPart = CohortPart()
    sums: SumsPart = SumsPart()
    split: SplitPart = SplitPart()
    local: LocalPart = LocalPart()
    server: ServerPart = ServerPart()
    augment: AugmentPart = AugmentPart()
    title: str = ""


def name_of(recipe: Recipe) -> str:
    """The recipe's name for people: its title, or the method and the options that were set."""
    if recipe.title:
        return recipe.title
    return option_words(short_name(recipe.method.name), recipe.method.options)


def option_words(name: str, options: Mapping[str, Any]) -> str:
    """A name with options in brackets, numbers to three digits."""
    said = ", ".join(f"{key}={f'{x:.3g}' if isinstance(x, float) else x}" for key, x in options.items())
    return f"{name}({said})" if said else name


PARTS: dict[str, type[Any]] = {name: kind for name, kind in get_type_hints(Recipe).items() if kind is not str}


def from_mapping(given: Mapping[str, Any]) -> Recipe:
    """A recipe from nested tables, each value checked for name, type and range."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "title":
            values[key] = typed(key, value, str)
        elif key in PARTS:
            if key == "net" and isinstance(value, Mapping) and isinstance(value.get("train"), str):
                value = {**value, "train": [value["train"]]}
            values[key] = read_fields(key, value, PARTS[key], "options" if issubclass(PARTS[key], NamedPart) else "")
        else:
            raise SelfsameError(f"[{_key(key)}]: unknown part of a recipe{nearest(key, [*PARTS, 'title'])}")
    return Recipe(**values)


def to_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as nested tables; options stand beside name, as a person would write them."""
    out: dict[str, Any] = {"title": recipe.title} if recipe.title else {}
    for name in PARTS:
        part = dataclasses.asdict(getattr(recipe, name))
        out[name] = {**{k: v for k, v in part.items() if k != "options"}, **part.get("options", {})}
    return out


def differences(one: Recipe, two: Recipe) -> list[str]:
    """The keys in which two recipes differ, as run.rounds.

    The title, where files lie and the device that it runs on make no other run.
    """
    elsewhere = ("data.path", "net.start", "run.device")
    left, right = to_mapping(one), to_mapping(two)
    keys = {f"{part}.{key}": (part, key) for part in PARTS for key in (*left[part], *right[part])}
    missing = object()
    return [
        name
        for name, (part, key) in keys.items()
        if name not in elsewhere and left[part].get(key, missing) != right[part].get(key, missing)
    ]


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml_value(one)}" for name, one in value.items()) + "}"
    raise SelfsameError(f"a recipe cannot hold {value!r}")


def _key(name: str) -> str:
    """A key as TOML writes it: in quotes unless it is plain."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML text, from which `from_mapping` and `read_toml` make the same recipe."""
    return tables_to_toml(to_mapping(recipe))


def tables_to_toml(tables: Mapping[str, Any]) -> str:
    """Values and tables of values as TOML text; values stand before the tables."""
    lines = []
    for name, part in tables.items():
        if isinstance(part, dict):
            lines += ["", f"[{name}]"] + [f"{_key(key)} = {toml_value(value)}" for key, value in part.items()]
        else:
            lines.append(f"{name} = {toml_value(part)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or one clear line."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number of thousands of digits, or nested too deeply
        raise SelfsameError(f"{path}: not TOML: {error}") from None


def stored_recipe(folder: Path, trust_code: bool = False) -> Recipe:
    """The recipe of a run's folder. One that names code by its import path is taken only where that is trusted.

    A folder may come from anybody, and importing runs what it names.
    """
    if not (folder / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: not a run (no recipe.toml in it)")
    found = from_mapping(read_toml(folder / "recipe.toml"))
    code = [part.name for part in (found.method, found.net) if ":" in part.name]
    if code and not trust_code:
        raise SelfsameError(
            f"{folder}: opening it imports and runs {' and '.join(code)}; add --trust-code if you trust who made it"
        )
    return found


def parse_setting(text: str) -> tuple[list[str], Any]:
    """'local.lr=0.1' as (["local", "lr"], 0.1); a value that is not TOML is taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SelfsameError(f"--set {text}: expected key=value, e.g. local.lr=0.05")
    try:
        parsed = tomllib.loads(f"v = {value.strip()}")["v"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    return key.strip().split("."), parsed


def bare_options(settings: Iterable[str] | None) -> dict[str, Any]:
    """The values of key=value settings by their last key: options of the one thing that a command is about."""
    return {keys[-1]: value for keys, value in map(parse_setting, settings or ())}


def apply_settings(tables: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Lay key=value settings over nested tables; a key without a part goes to the method (alpha=0.1)."""
    out = merged(tables)
    for setting in settings:
        path, value = parse_setting(setting)
        if path == ["title"]:
            out["title"] = value
            continue
        part = path[0] if len(path) > 1 else "method"
        if len(path) > 2 or part not in PARTS:
            raise SelfsameError(f"--set {setting}: unknown part {part!r}{nearest(part, PARTS)}")
        if not isinstance(out.setdefault(part, {}), dict):
            raise SelfsameError(f"[{part}]: expected a table, got {out[part]!r}")
        out[part][path[-1]] = value
    return out


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables laid over one another, later ones on top."""
    out: dict[str, Any] = {}
    for layer in layers:
        for name, part in layer.items():
            if isinstance(part, Mapping) and isinstance(out.get(name), dict):
                out[name] = {**out[name], **part}
            else:
                out[name] = dict(part) if isinstance(part, Mapping) else part
    return out
