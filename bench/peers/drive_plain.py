"""The plain loop: FedAvg in PyTorch as anybody would write it, one client after another."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from work import Clock, Work, order, pull, read


def run(work: Work, clock: Clock) -> dict[str, Tensor]:
    """All rounds; returns the final parameters by name."""
    net = work.net()
    names, weights = zip(*net.named_parameters())
    server = [w.detach().clone() for w in weights]
    class_ND = work.class_ND.clone()
    for number, client_M in enumerate(work.client_TM.tolist()):
        mean = [torch.zeros_like(w) for w in server]
        for place, client in enumerate(client_M):
            class_D = class_ND[client].clone().requires_grad_()
            with torch.no_grad():
                for w, value in zip(weights, server):
                    w.copy_(value)
            for x in work.samples(number, place).split(work.batch):
                loss = pull(net(x), class_D, work.margin)
                grads = torch.autograd.grad(loss, [*weights, class_D])
                with torch.no_grad():
                    for w, grad in zip([*weights, class_D], grads):
                        w.sub_(grad, alpha=work.lr)
            class_ND[client] = class_D.detach()
            with torch.no_grad():
                for total, w in zip(mean, weights):
                    total.add_(w, alpha=1 / len(client_M))  # every client holds as many samples
        server = mean
        clock.tick(functools.partial(dict, zip(names, server)))
    return dict(zip(names, server))


if __name__ == "__main__":
    told = order()
    given = read(told.folder)
    watch = Clock(given)
    run(given, watch)
    watch.write(told.out, torch.__version__.partition("+")[0])
