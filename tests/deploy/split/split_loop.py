"""A server of split rounds and its devices on one clock, with every message in the test's hands."""

import functools
import json
import threading

import torch

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.deploy.codec import glance
from selfsame.deploy.process import EnclaveEnded
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.attest import Policy
from selfsame.deploy.split.controller import Controller
from selfsame.deploy.split.device import SplitDevice
from selfsame.deploy.split.server import SplitServer
from selfsame.enclave.session import Enclave
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin

ADAM = {"optimiser": "adam", "lr": 1e-3, "beta2": 0.999, "epsilon": 1e-8}
NOISE = {"noise": "gaussian", "clip": 0.5, "scale": 0.5}


def a_recipe(rounds=2, method=None, server=None, precision="float32", **parts):
    tables = {
        # A smooth loss: of a triplet on the very edge, one precision may say yes and another no.
        "method": {"name": "fdml", "kind": "multi-similarity", **(method or {})},
        "data": {"name": "digits", "turns": 1, "held_out": 6},
        "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
        "run": {"rounds": rounds, "device": "cpu", "precision": precision, "seed": 3},
        "local": {"batch": 5, "lr": 1.0},
        "server": server or {"optimiser": "average", "lr": 0.1},
        **parts,
    }
    return from_mapping(tables)


@functools.cache
def digits():
    return load("digits", turns=1, held_out=6)


def samples(client):
    """The raw samples of one client."""
    federation = digits()
    return federation.source.rows(torch.tensor([client]), torch.arange(int(federation.count_N[client]))[None])[0]


def simulated(recipe, plan=None):
    """The state that the reference engine comes to."""
    problem = prepare(recipe, digits())
    state = begin(problem)
    Engine(problem, "reference").run(state, plan or make_plan(recipe, 0, recipe.run.rounds, state.present))
    return state


class Loop:
    """Four devices (or more) with folders of their own; `now` moves when nothing else does."""

    def __init__(self, folder, recipe, terms=None, nodes=4, fresh=True, **server):
        self.folder, self.recipe, self.now, self.fresh = folder, recipe, 0.0, fresh
        self.terms = terms or Terms(recipe.cohort.size or nodes, embedding_wait=10.0, answer_wait=10.0)
        self.names = [f"node{i}" for i in range(nodes)]
        self._options = server
        self.device = {name: self.open_device(name) for name in self.names}
        self.server = self.open_server()
        self.log = []
        self.server.begin(self.names, self.now)

    def open_device(self, name, **options):
        options = {"policy": Policy(allow_simulated=True), "simulate": True} | options
        return SplitDevice(self.folder / name, samples(int(name[4:])), **options)

    def open_server(self):
        folder, options = self.folder / "server", {"seeded": True, "federation": digits(), **self._options}
        return SplitServer(folder, self.recipe, self.terms, **options)

    def reopen_server(self):
        self.server.close()
        self.server = self.open_server()
        self.server.begin(self.names, self.now)

    def ask(self, ask):
        """A device's answer, by a new process as far as it can tell."""
        if self.fresh:
            self.device[ask.node] = self.open_device(ask.node)
        return self.device[ask.node].reply(ask.payload)

    def run(self, until=None, deliver=None, most=200):
        """Until done, or until `until()`; `deliver(ask)` may lose a message (None) or change its answer."""
        opening = type(self.server)._open
        self.server._open = lambda now: [] if until is not None and until() else opening(self.server, now)
        for _ in range(most):
            if self.server.done or (until is not None and until()):
                del self.server._open
                return
            asks = self.server.step(self.now)
            for ask in asks:
                self.log.append(ask)
                answer = self.ask(ask) if deliver is None else deliver(ask)
                if answer is not None:
                    self.server.answer(ask.node, answer, self.now)
            if not asks:
                self.now = max(self.now, min(self.server.waiting_until, self.now + 1.0))
        raise AssertionError("it does not end")


class Direct(Controller):
    """A controller whose enclave is an object: quicker than a process, the same frames."""

    made = 0

    def __init__(self, plan):
        self.mandate, self.limit, self._lock = plan, None, threading.Lock()
        self.enclave = Enclave(plan)
        Direct.made += 1

    @property
    def alive(self):
        return self.enclave is not None

    def _exchange(self, body):
        if self.enclave is None:
            raise EnclaveEnded("enclave: its process has ended")
        return self.enclave.handle(body)

    def kill(self):
        self.enclave = None

    def close(self):
        pass


def reasons(*answers):
    """The reasons in answers of a device; None for one that is not a refusal."""
    found = []
    for answer in answers:
        said = json.loads(json.loads(answer[8 : 8 + int.from_bytes(answer[:8], "little")])["__metadata__"]["selfsame"])
        found.append(said["meta"].get("reason"))
    return found[0] if len(found) == 1 else found


def kind_of(ask):
    return glance(ask.payload, 1 << 30)[0]
