"""selfsame's cohort engine, in one process or in one for each core; draws its batches within the timed rounds."""

from __future__ import annotations

from case import Shape, start
from work import Clock, order, read

import selfsame
from selfsame.engine.ranks.group import join, leave


def main(compile: str = "auto") -> None:
    told = order()
    work = read(told.folder)
    _, cohort, steps, _ = work.index_TMSB.shape
    ranks = join()
    shape = Shape(work.method, cohort, steps, work.shape[-1], work.rounds, work.repeats, work.shape[0])
    case = start(shape, ranks, compile)
    clock = Clock(work)
    views = case.problem.model.net_views
    for count in (work.check, *[work.rounds] * work.repeats):
        case.rounds(count)
        clock.tick(lambda: views(case.state.theta_P), count)
    if ranks.first:
        clock.write(told.out, selfsame.__version__)
    leave(ranks)


if __name__ == "__main__":
    main()
