"""What group norm costs, and what standardised kernels give back: python bench/norms.py RECIPE --path DATA [...].

Runs one variant of a recipe with group norm, with group norm and standardised kernels, and with batch norm over the
whole cohort, which no client could compute: it sees all clients' samples at once, and averages over rounds at test. On
the CPU, with residual networks and one local step. Prints P@1 at the end of each run; the split, the samples and the
start of the network are the same for all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import header
from selfsame.config.experiment import read_experiment
from selfsame.data import load
from selfsame.engine.model import Model
from selfsame.nets import resnet
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start

NORMS = ["group", "standard", "cohort"]
_MOVE = 0.05  # how far the averages at test go towards each cohort


class CohortNorm(nn.Module):
    """Batch norm over whatever is in the pass; it keeps its averages out of the network's state."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.seen:
            variance, mean = torch.var_mean(x.detach(), (0, 2, 3), correction=0)
            if self.seen:
                mean, variance = (old.lerp(new, _MOVE) for old, new in zip(self.seen[0], (mean, variance), strict=True))
            if torch.is_grad_enabled():
                self.seen[:] = [(mean, variance)]
            return F.batch_norm(x, None, None, self.weight, self.bias, True)
        return F.batch_norm(x, *self.seen[0], self.weight, self.bias, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--path", required=True)
    parser.add_argument("--only", required=True, help="the variant's title")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    options = parser.parse_args()
    given = {"data": {"path": options.path}, "run": {"device": "cpu"}}
    print(header(torch.device("cpu")))
    for norm in options.norms:
        flag = [f"net.standardise={'true' if norm == 'standard' else 'false'}"]
        experiment = read_experiment(options.recipe, given, [*options.settings, *flag])
        (variant,) = experiment.select([options.only])
        job = next(job for job in experiment.jobs(Path("unused")) if job.variant is variant)
        kept = resnet.group_norm, Model._piece
        if norm == "cohort":
            resnet.group_norm = lambda channels, groups: CohortNorm(channels)  # type: ignore
            Model._piece = lambda self, x_MB: x_MB.shape[0] * x_MB.shape[1]  # type: ignore[method-assign]
        try:
            data = job.recipe.data
            run = carry_on(start(job.recipe, None, load(data.name, data.path, **data.options)))
        finally:
            resnet.group_norm, Model._piece = kept  # type: ignore
        figures = [f"{record['round']}: {100 * record['p@1']:.1f}" for record in run.history]
        print(f"{options.only}, {norm}: P@1 % after rounds {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
