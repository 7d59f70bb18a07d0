"""The cases of FedHide's Table 2: networks trained, one update or the mean of several attacked, what was found judged.

Every finished case is a line of a file, and so is every network, in a folder beside it; several processes share both
(`sharing`). The paper gives: ResNet-18 on CIFAR-100, before training and after 100,000 rounds of 10 of 100 clients, the
loss (1), one picture each of sea, flower, chair and porcupine, the attack of Geiping et al. and LPIPS, by their
authors' code. What it does not give is on the page (`report.picture_page`).
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfsame.audit.inversion import Inversion, invert
from selfsame.audit.likeness import Inverted, compare
from selfsame.audit.lpips import Lpips
from selfsame.audit.transcript import local_updates
from selfsame.config.picture_attacks import ANY, NETWORK, NETWORKS, OTHERS, TABLE, TAKEN, Key, PictureSettings
from selfsame.config.recipe import Recipe, from_mapping
from selfsame.data import Federation
from selfsame.data.fingerprint import Fingerprint
from selfsame.engine.machine import facts
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.report.picture_cases import FIGURES, SIDE, Case
from selfsame.runs.course import Run
from selfsame.runs.experiments import standing
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, open_run, start
from selfsame.runs.sharing import Counts, OutOfTime, look_up, share
from selfsame.streams import host_generator

Train = Callable[[Run, str], object]  # a run to its end, by its title


def _train(run: Run, _title: str) -> None:
    carry_on(run)


class Inversions:
    """The data, the judges, and each method's network once it is trained or read."""

    def __init__(
        self,
        settings: PictureSettings,
        federation: Federation,
        file: Path,
        path: Path | None = None,
        judges: Iterable[Lpips] = (),
        device: str = "auto",
        train: Train = _train,
    ) -> None:
        self.settings, self.federation, self.path, self.device, self.train = settings, federation, path, device, train
        self.judges = {f"{SIDE}{judge.side}": judge for judge in judges}
        self.file, self.networks = file, file.with_name(f"{file.stem}-networks") / "networks.jsonl"
        self.pictures = file.with_name(f"{file.stem}-pictures")
        self.terms = Inversion(
            settings.iterations, settings.restarts, settings.variation, settings.step, settings.weights,
            together=settings.together, compile=settings.derivatives,
        )  # fmt: skip
        self.targets = self._targets()
        self.clients(max(settings.sizes), settings.seeds[0])
        prepare(self.recipe(next(iter(TABLE)), settings.seeds[0]), federation)
        self._print = Fingerprint.of(federation)
        self._read: dict[str, tuple[State, float | None]] = {}

    def recipe(self, method: str, seed: int, attacked: bool = True) -> Recipe:
        """A method on the data: to be attacked in single precision, or to be trained as fast as the machine can."""
        settings, data = self.settings, {"name": self.settings.data}
        net: dict[str, Any] = {"name": settings.net} if settings.net else {}
        net |= {"width": settings.width} if settings.width else {}
        net |= {"standardise": True, "groups": 2} if settings.standardise else {}
        rounds = max(1, settings.rounds)
        tables: dict[str, Any] = {
            "method": {**TABLE, **OTHERS}[method].method,
            "data": data | ({"path": str(self.path)} if self.path is not None else {}),
            "net": net,
            "run": {
                "rounds": rounds,
                "seed": seed,
                "device": self.device,
                "precision": "float32" if attacked else "auto",
                "compile": "off" if attacked else "graphs",
                "eval_every": rounds,
            },
            "cohort": {"weights": "uniform", "size": settings.cohort},
            "local": {"batch": settings.batch if attacked else 16, "lr": 0.1, "schedule": "cosine"},
            # A twice as large cohort takes twice as large a step.
            "server": {"optimiser": "momentum", "weight_decay": 5e-4, "lr": max(1.0, settings.cohort / 10)},
        }
        return from_mapping(tables)

    def _targets(self) -> list[int]:
        """The clients whose pictures are looked for: the first of each class named, or so many of them all."""
        images, names = self.settings.images, self.federation.class_names
        if images.isdigit():
            if int(images) > self.federation.clients:
                raise SelfsameError(f"--set images: {self.settings.data} has {self.federation.clients} clients")
            return list(range(int(images)))
        class_of, found = self.federation.class_of_N.tolist(), []
        for word in images.split(","):
            if word not in names:
                known = f"the classes are: {', '.join(names)}" if names else "its classes have no names, say how many"
                raise SelfsameError(f"--set images: no class of {self.settings.data} is called {word!r}; {known}")
            found.append(class_of.index(names.index(word)))
        return found

    def clients(self, size: int, seed: int) -> torch.Tensor:
        """Each target with size - 1 others, who are in no other group."""
        rest = [client for client in range(self.federation.clients) if client not in self.targets]
        if len(rest) < (size - 1) * len(self.targets):
            raise SelfsameError(f"--set sizes: {self.federation.clients} clients are too few for groups of {size}")
        order = host_generator(seed, "inversion groups").permutation(rest).tolist()
        taken = iter(order)
        groups = [[target, *(next(taken) for _ in range(size - 1))] for target in self.targets]
        return torch.tensor(groups).flatten()

    # Networks

    def network_key(self, key: Key) -> Key:
        """What the trained network of a case depends on."""
        return {"method": key["method"]} | {name: key[name] for name in (*NETWORK, "rounds", "cohort")}

    def folder(self, key: Key) -> Path:
        """Where the run of a network lies, by its key."""
        name = re.sub(r"[^a-z0-9]+", "-", key["method"].lower()).strip("-")
        return self.networks.parent / f"{name}-{_digest(key)}"

    def train_networks(self, keys: Iterable[Key], wait: bool = False) -> list[Key]:
        """Train the networks of these cases that are not there yet; gives those that are left."""
        wanted: list[Key] = []
        for key in (self.network_key(key) for key in keys if key["network"] == NETWORKS[1]):
            wanted += [] if key in wanted else [key]
        if not wanted:
            return []
        return share(self.networks, wanted, self._trained, wait=wait, counts=self._lies_there, tell=lambda _: None)

    def _lies_there(self, line: Key) -> bool:
        """Whether the network of a line is there too: lines may have come without the runs."""
        return (self.folder(line["key"]) / "checkpoint" / "state.safetensors").is_file()

    def _trained(self, key: Key) -> Key:
        recipe, folder = self.recipe(key["method"], key["seed"], attacked=False), self.folder(key)
        title = f"{key['method']}, seed {key['seed']}" if len(self.settings.seeds) > 1 else key["method"]
        if differs := standing(folder, recipe).differs:
            raise SelfsameError(f"{folder}: holds a run of another recipe ({', '.join(differs)}); remove it")
        there = (folder / "recipe.toml").is_file()
        run = load_run(folder, self.federation, device=self.device) if there else start(recipe, folder, self.federation)
        self.train(run, title)
        if run.diverged:
            raise SelfsameError(f"{folder}: the training of {title} diverged")
        return {"p@1": run.final.get("p@1"), "seconds": round(run.seconds, 1), **facts(run.problem.model.device)}

    def state(self, key: Key) -> tuple[State, float | None]:
        """A case's network and its P@1; at round 0 whatever its training, so that the same pictures are drawn."""
        if key["network"] != NETWORKS[1]:
            return begin(prepare(self.recipe(_method(key), key["seed"]), self.federation)), None
        name = self.network_key(key)
        if (known := _digest(name)) not in self._read:
            if self.train_networks([key], wait=True):  # whoever is training it is waited for
                raise OutOfTime
            run = open_run(
                self.folder(name), self.path, self.device, exact=True, federation=self.federation,
                printed=lambda _: self._print,
            )  # fmt: skip
            self._read = {known: (replace(run.state, round=0), (look_up(self.networks, name) or {}).get("p@1"))}
        return self._read[known]

    # Attacks

    def attack(
        self, keys: Iterable[Key], counts: Counts, heard: Callable[[], object], tell: Callable[[str], object]
    ) -> list[Key]:
        """Every case that its file lacks; gives those that are left to others. `tell` is told of each."""

        def one(key: Key) -> Key:
            case, got = self.case(key)
            self._keep(key, got)
            tell(f"{words_of(key)}: {case['seconds']:.0f} s")
            return {"found": case}

        return share(self.file, keys, one, counts=counts, heard=heard, tell=tell)

    def case(self, key: Key) -> tuple[Case, Inverted]:
        """(the figures of one case, the pictures)."""
        size, seed = key["size"], key["seed"]
        problem = prepare(self.recipe(_method(key), seed), self.federation)
        state, right = self.state(key)
        client_M = self.clients(size, seed).to(state.theta_P.device)
        taken = {}
        if key["attacker"] == TAKEN:
            lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=client_M.device)
            taken = {"prototype": local_updates(problem, state, client_M, lr)[2]["proxy"]}
        got = invert(problem, state, client_M, size, replace(self.terms, seed=seed), taken=taken)
        found: Case = {name: {"psnr": _targets(getattr(got, name).psnr_GS)} for name in FIGURES}
        for side, judge in self.judges.items():
            compared = compare(got.original_GS, got.found_GS, got.other_T, judge)
            for name in FIGURES:
                found[name][side] = _targets(getattr(compared, name).lpips_GS)
        if not all(math.isfinite(one) for name in FIGURES for some in found[name].values() for one in some):
            raise SelfsameError(f"{words_of(key)}: the search ended in no numbers")
        found["mismatch"] = [one if math.isfinite(one) else None for one in got.mismatch_G.tolist()]
        found |= {"p@1": right, "parameters": problem.model.parameters}
        return found | {"seconds": round(got.seconds, 1), **facts(problem.model.device)}, got

    def _keep(self, key: Key, got: Inverted) -> None:
        """The originals and what was found of them, (2, G, C, H, W) in bytes: the page's picture is drawn from them."""
        both = torch.stack([got.original_GS[:, 0], got.matched()[:, 0]])
        data = io.BytesIO()
        np.save(data, both.mul(255).round().byte().cpu().numpy(), allow_pickle=False)
        write(picture_file(self.pictures, key), data.getvalue())


def picture_file(folder: Path, key: Key) -> Path:
    """Where the pictures of a case lie."""
    return folder / f"{_digest(key)}.npy"


def words_of(key: Key) -> str:
    """A case in words."""
    how = "proxy taken" if key["attacker"] == TAKEN else f"read, n = {key['size']}"
    return f"{key['network']}, {key['method']}, {how}, seed {key['seed']}"


def _method(key: Key) -> str:
    return next(iter(TABLE)) if key["method"] == ANY else str(key["method"])


def _digest(key: Key) -> str:
    return sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def _targets(value_GS: torch.Tensor) -> list[float]:
    """The targets' values: they come first in their groups."""
    found: list[float] = value_GS[:, 0].tolist()
    return found
