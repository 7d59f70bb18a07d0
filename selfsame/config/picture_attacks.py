"""FedHide's Table 2, the pictures behind an update: its rows, the settings of attacks, and the cases of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from selfsame.config.recipe import parse_setting
from selfsame.errors import SelfsameError
from selfsame.fields import at_least, nearest, typed

NETWORKS = ("untrained", "trained")
TAKEN, READ = "shared", "read"  # what stands for the owner: what the device shares, or what its update gives away
ANY = "any method"  # an untrained network's update does not depend on proxies
DATA = "cifar100"  # of the paper
ROUNDS, COHORT = 100_000, 10  # the same
NETWORK = ("data", "net", "standardise", "width", "seed")  # what a network depends on, beside rounds and cohort
ATTACK = ("iterations", "restarts", "variation", "step", "weights")
COMMON = (*NETWORK, "batch", *ATTACK, "images")
_SPEED = ("together", "derivatives")  # what the figures do not depend on
Key = dict[str, Any]


@dataclass(frozen=True)
class Attacked:
    """A method under attack, and the paper's LPIPS before and after training, each with its deviation."""

    method: dict[str, Any]
    paper: dict[str, tuple[float, float]]


def _row(untrained: tuple[float, float], trained: tuple[float, float], **method: Any) -> Attacked:
    return Attacked(method, dict(zip(NETWORKS, (untrained, trained), strict=True)))


def _gn(sigma: float, *paper: tuple[float, float]) -> Attacked:
    return _row(*paper, name="fedgn", sigma=sigma)


def _cs(cosine: float, *paper: tuple[float, float]) -> Attacked:
    return _row(*paper, name="fedcs", cosine=cosine)


def _hide(alpha: float, neighbours: int, *paper: tuple[float, float]) -> Attacked:
    return _row(*paper, name="fedhide", alpha=alpha, neighbours=neighbours)


TABLE: dict[str, Attacked] = {
    "w/o perturbation": _gn(0.0, (0.48, 0.05), (0.64, 0.07)),
    "FedGN (0.01)": _gn(0.01, (0.54, 0.08), (0.76, 0.06)),
    "FedGN (0.05)": _gn(0.05, (0.75, 0.01), (0.70, 0.13)),
    "FedGN (0.1)": _gn(0.1, (0.76, 0.01), (0.79, 0.01)),
    "FedCS (0.9)": _cs(0.9, (0.64, 0.04), (0.71, 0.13)),
    "FedCS (0.75)": _cs(0.75, (0.72, 0.01), (0.78, 0.03)),
    "FedCS (0.5)": _cs(0.5, (0.75, 0.01), (0.76, 0.07)),
    "FedHide (0.5, 1)": _hide(0.5, 1, (0.73, 0.02), (0.65, 0.11)),
    "FedHide (0.5, 5)": _hide(0.5, 5, (0.74, 0.00), (0.76, 0.01)),
    "FedHide (0.1, 1)": _hide(0.1, 1, (0.76, 0.02), (0.74, 0.02)),
    "FedHide (0.1, 5)": _hide(0.1, 5, (0.77, 0.01), (0.73, 0.08)),
    "FedHide (0.01, 1)": _hide(0.01, 1, (0.77, 0.02), (0.70, 0.11)),
    "FedHide (0.01, 5)": _hide(0.01, 5, (0.78, 0.02), (0.74, 0.06)),
}
# Not of the table: they share no proxy, and one device's update is read.
OTHERS: dict[str, Attacked] = {
    "FedCrowd, quadratic": Attacked({"name": "fedcrowd", "loss_kind": "quadratic"}, {}),
    "softmax": Attacked({"name": "softmax"}, {}),
}


@dataclass(frozen=True)
class PictureSettings:
    """What is attacked and how; `--set` changes it."""

    data: str = DATA
    net: str = ""  # the data set's own, ResNet-18 for CIFAR-100
    standardise: bool = True  # its kernels, with two groups a norm: it trains in fewer rounds
    width: int = 0  # of the embedding; 0: the data set's own
    rounds: int = 2000  # of training; 0: untrained networks alone
    cohort: int = 20  # clients in a round of training
    images: str = "sea,sunflower,chair,porcupine"  # classes of which one client each is attacked, or how many clients
    batch: int = 1  # pictures of a device
    iterations: int = 1200
    restarts: int = 1
    variation: float = 0.01  # weight of the total variation
    step: float = 0.1
    weights: str = "equal"  # of the network's tensors
    sizes: tuple[int, ...] = (1, 2, 4, 16)  # devices in the mean that is read
    sides: tuple[int, ...] = (0, 64)  # that pictures are brought to for LPIPS; 0: as they are
    read: str = "FedHide (0.01, 5); FedCrowd, quadratic"  # whose trained network is read as well; or all
    seeds: tuple[int, ...] = (0,)
    together: int = 0  # searches in one pass; 0: all on CUDA
    derivatives: str = ""  # the backend that compiles an iteration's derivatives, such as inductor

    def __post_init__(self) -> None:
        for name in ("width", "rounds", "variation", "together"):
            at_least(f"--set {name}", getattr(self, name), 0)
        for name in ("cohort", "batch", "iterations", "restarts"):
            at_least(f"--set {name}", getattr(self, name), 1)
        for name, least in (("sizes", 1), ("sides", 0), ("seeds", 0)):
            found = getattr(self, name)
            if not found or len(set(found)) < len(found):
                raise SelfsameError(f"--set {name}: expected one or more whole numbers, each once, got {list(found)}")
            for one in found:
                at_least(f"--set {name}", one, least)
        if self.images.isdigit():
            at_least("--set images", int(self.images), 1)
        self.readable()

    def readable(self) -> list[str]:
        """The methods whose updates of a trained network are read."""
        if self.read.strip() == "all":
            return [*TABLE, *OTHERS]
        named = [name.strip() for name in self.read.split(";") if name.strip()]
        for name in named:
            if name not in TABLE and name not in OTHERS:
                known = "; ".join([*TABLE, *OTHERS])
                raise SelfsameError(f"--set read: expected all or some of {known}, got {name!r}")
        return named

    @property
    def targets(self) -> int:
        """How many pictures are looked for, where devices have one each."""
        return int(self.images) if self.images.isdigit() else len(self.images.split(","))

    def common(self, seed: int) -> Key:
        """What all cases of a seed have in common."""
        return {name: seed if name == "seed" else getattr(self, name) for name in COMMON}

    def plain(self) -> Key:
        """All that the figures depend on, as JSON has it."""
        found = {name: value for name, value in asdict(self).items() if name not in _SPEED}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def changed(self) -> list[str]:
        """What is not as it is by itself, as it is typed."""
        usual, out = PictureSettings().plain(), []
        for name, value in self.plain().items():
            if value != usual[name]:
                words = str(value).lower() if isinstance(value, bool) else str(value)
                out.append(f"--rounds {value}" if name == "rounds" else f"--set {name}={words}")
        return out


def picture_settings(given: Sequence[str], rounds: int | None) -> PictureSettings:
    """Those that a command line gives."""
    kinds, names = get_type_hints(PictureSettings), [part.name for part in fields(PictureSettings)]
    found: dict[str, Any] = {}
    for setting in given:
        keys, value = parse_setting(setting)
        name = ".".join(keys)
        if name not in names:
            raise SelfsameError(f"--set {setting}: the attack on pictures has no {name!r}{nearest(name, names)}")
        one = str(value) if kinds[name] is str and type(value) is int else value
        found[name] = typed(f"--set {name}", one, kinds[name])
    if rounds is not None:
        found["rounds"] = rounds
    return PictureSettings(**found)


def cases(settings: PictureSettings) -> Iterator[Key]:
    """The name of every case, the cheapest first: what a finished one is known by."""
    for seed in settings.seeds:
        for network in NETWORKS if settings.rounds else NETWORKS[:1]:
            trained = network == NETWORKS[1]
            length = {"rounds": settings.rounds, "cohort": settings.cohort} if trained else {"rounds": 0, "cohort": 0}
            for method, attacker, size in _attacks(settings, trained):
                key = {"network": network, "method": method, "attacker": attacker, "size": size}
                yield {**key, **length, **settings.common(seed)}


def _attacks(settings: PictureSettings, trained: bool) -> Iterator[tuple[str, str, int]]:
    for method in TABLE:
        yield method, TAKEN, 1
    named = settings.readable()
    ours = [name for name in named if name in TABLE]
    readable = ours if trained else [ANY] if ours else []
    for size in settings.sizes:
        for method in readable:
            yield method, READ, size
    for method in (name for name in named if name in OTHERS):
        yield method, READ, 1


def chosen(wanted: Sequence[Key], only: Sequence[str]) -> list[Key]:
    """The cases of the methods with one of these texts in their titles; all without one."""
    titles = list(dict.fromkeys(key["method"] for key in wanted))
    meant: set[str] = set()
    for text in only:
        hits = [title for title in titles if title == text]
        hits = hits or [title for title in titles if text.lower() in title.lower()]
        if not hits:
            raise SelfsameError(f"--only {text}: no row has this in its title; there are: {'; '.join(titles)}")
        meant |= set(hits)
    return [key for key in wanted if not only or key["method"] in meant]
