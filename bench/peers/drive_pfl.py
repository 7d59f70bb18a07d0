"""pfl (apple/pfl-research): FederatedAveraging on its SimulatedBackend, in one process or in one for each core."""

from __future__ import annotations

import importlib.metadata
import os
from itertools import product

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import Clock, Work, order, pull_and_turn, read


class Puller(nn.Module):
    """The network with its loss, as pfl wants it. Class vectors lie in a file that all processes see."""

    def __init__(self, work: Work, class_ND: Tensor) -> None:
        super().__init__()
        self.net, self.work, self.class_ND = work.net(), work, class_ND

    def loss(self, x: Tensor, client: int) -> Tensor:
        return pull_and_turn(self.net(x), self.class_ND[client], self.work.margin, self.work.lr)

    def metrics(self, x: Tensor) -> dict[str, Weighted]:
        """Nothing: pfl evaluates in its first round whatever the frequency asked for."""
        return {"samples": Weighted(0, len(x))}


class Ticks(TrainingProcessCallback):
    """Tells the clock of each round."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.tick(model.pytorch_model.net.state_dict)
        return False, Metrics()


def main() -> None:
    told = order()
    work = read(told.folder)
    clock = Clock(work)
    shared = told.out.with_suffix(".class")
    if int(os.environ.get("RANK", 0)) == 0:
        work.class_ND.numpy().tofile(shared)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    class_ND = torch.from_file(str(shared), shared=True, size=work.class_ND.numel()).view_as(work.class_ND)
    turn = product(*map(range, work.client_TM.shape))

    def dataset(user: tuple[int, int]) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(
            (work.samples(*user),), train_kwargs={"client": int(work.client_TM[user])}, user_id=str(user)
        )

    users = FederatedDataset(dataset, lambda: next(turn))
    module = Puller(work, class_ND)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.total,
            evaluation_frequency=work.total + 1,
            train_cohort_size=work.client_TM.shape[1],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr),
        callbacks=[Ticks(clock)],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        clock.write(told.out, importlib.metadata.version("pfl"))


if __name__ == "__main__":
    main()
