"""fluke: FedAVG, or its FedAwS, with its own client loop; nothing is evaluated."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # built for another PyTorch than this one; fluke imports it, nothing here uses its operators
    missing = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        missing.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedaws import FedAwS, FedAwSServer
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from torch import Tensor, nn
from work import Clock, Work, order, pull, pull_and_turn, read


class Classified(nn.Module):
    """fluke's FedAwS keeps the class vectors in the shared model and averages them with it."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net = work.net()
        self.classifier = nn.Linear(work.width, len(work.class_ND), bias=False)
        with torch.no_grad():
            self.classifier.weight.copy_(work.class_ND)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.classifier.weight


class OneClass(Client):
    """A client that is handed the samples of the round before its training loop runs."""

    def __init__(self, index: int, work: Work, **rest: Any) -> None:
        self.work = work
        super().__init__(index, loader(work, work.x[: work.batch], index), None, **rest)

    def local_update(self, current_round: int) -> None:
        number = current_round - 1
        x = self.work.samples(number, self.work.place(number, self.index))
        self.train_set = loader(self.work, x, self.index)
        super().local_update(current_round)


def loader(work: Work, x: Tensor, client: int) -> FastDataLoader:
    label = torch.full((len(x),), client)
    return FastDataLoader(x, label, num_labels=len(work.class_ND), batch_size=work.batch)


def losses(work: Work, client: int, class_ND: Tensor) -> Any:
    """The loss in the form that a client's training loop calls."""
    if work.method == "fedaws":
        return lambda out, label: pull(out[0], out[1][client], work.margin)
    return lambda emb, label: pull_and_turn(emb, class_ND[client], work.margin, work.lr)


def planned(base: type[Server], work: Work) -> type[Server]:
    """A server that asks the clients of the plan."""

    class Planned(base):
        asked = 0

        def get_eligible_clients(self, eligible_perc: float) -> list[Client]:
            self.asked += 1
            return [self.clients[client] for client in work.client_TM[self.asked - 1]]

    return Planned


class Ticks(FederationObserver):
    """Tells the clock of each round."""

    def __init__(self, clock: Clock, net: nn.Module) -> None:
        self.clock, self.net = clock, net

    def end_round(self, round: int) -> None:
        self.clock.tick(self.net.state_dict)


def main() -> None:
    told = order()
    work = read(told.folder)
    clock = Clock(work)
    FlukeENV().set_eval_cfg(server=False)
    class_ND = work.class_ND.clone()
    sgd = OptimizerConfigurator({"name": "SGD", "lr": work.lr})
    clients = [
        OneClass(n, work, optimizer_cfg=sgd, loss_fn=losses(work, n, class_ND), local_epochs=1)
        for n in range(len(class_ND))
    ]
    if work.method == "fedaws":
        model: nn.Module = Classified(work)
        net, algorithm, base = model.net, FedAwS, FedAwSServer
        # Its distance is half of (11) and its loss the mean over all pairs, ours is the sum: same step.
        rate = 4 * len(class_ND) ** 2 * work.spread["weight"] * work.lr
        more = {"aws_lr": rate, "aws_steps": 1, "margin": work.spread["margin"] / 2}
    else:
        model = net = work.net()
        algorithm, base, more = FedAVG, Server, {}
    server = planned(base, work)(model=model, test_set=None, clients=clients, weighted=True, **more)
    federation = algorithm(len(clients), None, {}, clients=clients, server=server)
    federation.set_callbacks(Ticks(clock, net))
    federation.run(work.total, work.client_TM.shape[1] / len(clients))
    clock.write(told.out, importlib.metadata.version("fluke-fl"))


if __name__ == "__main__":
    main()
