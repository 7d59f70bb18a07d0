"""A small plan, devices with a linear network, and an enclave in this process where a test needs no other."""

import threading

import numpy as np

from selfsame.deploy.split.attest import Policy
from selfsame.deploy.split.controller import Controller
from selfsame.deploy.split.participant import Participant
from selfsame.enclave.mandate import Mandate
from selfsame.enclave.session import Enclave

IN, DIM = 5, 3
NETWORK = bytes(range(32))  # stands for the digest of a round's network


def a_plan(**changes):
    whole = {
        "network": f"linear {IN}x{DIM}",
        "dim": DIM,
        "parameters": IN * DIM,
        "loss": {"kind": "batch-all", "margin": 5.0},
        "privacy": {"kind": "none"},
        "participants": 3,
        "gradients": 2,
        "samples": 4,
        "embedding_clip": 100.0,
        "gradient_clip": 1000.0,
        "rounds": 100,
        "most": 0,
    }
    return Mandate(**(whole | changes))


class OneNetwork(Controller):
    """A controller whose rounds have the network of these tests, unless another one is named."""

    def begin(self, round, network=NETWORK):
        super().begin(round, network)


class Recording(OneNetwork):
    """A controller that keeps every byte that passed."""

    def __init__(self, plan, **options):
        self.seen = []
        super().__init__(plan, **options)

    def _exchange(self, body):
        answer = super()._exchange(body)
        self.seen += [body, answer]
        return answer


class Direct(OneNetwork):
    """A controller whose enclave is an object: quicker than a process, the same frames."""

    def __init__(self, plan, **options):
        self.mandate, self.seen, self._lock = plan, [], threading.Lock()
        self.enclave = Enclave(plan, **options)

    def _exchange(self, body):
        self.seen += [body, self.enclave.handle(body)]
        return self.seen[-1]

    def close(self):
        pass


class Device(Participant):
    """A participant with data and a linear network."""

    def __init__(self, plan, seed, samples=4):
        super().__init__(plan, Policy(allow_simulated=True))
        rng = np.random.default_rng(seed)
        self.x_BI = rng.normal(size=(samples, IN)) + 2 * rng.normal(size=IN)
        self.session = None

    def embed(self, weight_ID):
        return self.x_BI @ weight_ID

    def embeddings(self, round, emb_BD, network=NETWORK):
        return super().embeddings(round, emb_BD, network)

    def pull_back(self, grad_BD):
        return (self.x_BI.T @ grad_BD).ravel()


def joined(controller, count, samples=4, plan=None):
    """Devices with open sessions; `samples` is a number or one for each."""
    sizes = [samples] * count if isinstance(samples, int) else samples
    devices = [Device(plan or controller.mandate, seed, size) for seed, size in zip(range(count), sizes)]
    for device in devices:
        device.session = device.welcome(controller.hello(device.hello(controller.attest(device.nonce))))
    return devices


def weights(seed=7):
    return np.random.default_rng(seed).normal(size=(IN, DIM))


def run_round(controller, devices, number, weight_ID):
    """One round without exceptions: the aggregate, and what each device knew."""
    controller.begin(number)
    known = []
    for device in devices:
        emb_BD = device.embed(weight_ID)
        assert controller.submit(device.embeddings(number, emb_BD)) is None
        known.append({"emb": emb_BD})
    sent = controller.derive(number)
    for device, mine in zip(devices, known):
        mine["grad_emb"] = device.derivatives(number, sent[device.session])
        mine["grad"] = device.pull_back(mine["grad_emb"])
        assert controller.submit(device.gradient(number, mine["grad"])) is None
    return controller.aggregate(number), known
