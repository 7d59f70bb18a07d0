"""Flower's simulation: run_simulation on ray, the clients spread over the cores, FedAvg of its message API."""

from __future__ import annotations

import time
from collections.abc import Iterable

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Clock, Order, Work, order, pull_and_turn, read


def client_app(told: Order) -> ClientApp:
    """A client: its class vector lies in its own state, samples are read once a process."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(told.threads)
        work = read(told.folder)
        number, place = message.content["config"]["number"], message.content["config"]["place"]
        state = context.state
        if "class" not in state:
            state["class"] = ArrayRecord({"row": work.class_ND[work.client_TM[number, place]]})
        row_D = state["class"].to_torch_state_dict()["row"].clone()
        net = work.net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        sgd = torch.optim.SGD(net.parameters(), lr=work.lr)
        for x in work.samples(number, place).split(work.batch):
            sgd.zero_grad()
            pull_and_turn(net(x), row_D, work.margin, work.lr).backward()
            sgd.step()
        state["class"] = ArrayRecord({"row": row_D})
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": work.batch})}
        return Message(RecordDict(content), reply_to=message)

    return app


class Planned(FedAvg):
    """FedAvg that asks the clients of the plan and tells the clock of each round."""

    def __init__(self, work: Work, clock: Clock, nodes: list[int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work, self.clock, self.nodes = work, clock, nodes

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        number = server_round - 1
        messages = []
        for place, client in enumerate(self.work.client_TM[number]):
            told = ConfigRecord({"number": number, "place": place})
            content = RecordDict({"arrays": arrays, "config": told})
            messages.append(Message(content, dst_node_id=self.nodes[client], message_type="train"))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, _ = super().aggregate_train(server_round, replies)
        assert arrays is not None
        self.clock.tick(arrays.to_torch_state_dict)
        return arrays, None


def main() -> None:
    told = order()
    work = read(told.folder)
    clock = Clock(work)
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.001  # it looks for answers every 0.1 s unless told otherwise
        while len(nodes := sorted(grid.get_node_ids())) < len(work.class_ND):
            time.sleep(0.1)  # they are registered while this runs
        Planned(work, clock, nodes).start(grid, ArrayRecord(dict(work.first)), num_rounds=work.total)

    cores = {"num_cpus": told.workers * told.threads}
    run_simulation(
        app,
        client_app(told),
        num_supernodes=len(work.class_ND),
        backend_config={"init_args": cores, "client_resources": {"num_cpus": told.threads, "num_gpus": 0.0}},
    )
    clock.write(told.out, flwr.__version__)


if __name__ == "__main__":
    main()
