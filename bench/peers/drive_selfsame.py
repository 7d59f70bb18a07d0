"""selfsame's cohort engine; unlike the others it draws and standardises its batches within the timed rounds."""

from __future__ import annotations

from case import Shape, start
from work import Clock, order, read

import selfsame

if __name__ == "__main__":
    told = order()
    work = read(told.folder)
    _, cohort, steps, _ = work.index_TMSB.shape
    case = start(Shape(work.method, cohort, steps, work.shape[-1], work.rounds, work.repeats, work.shape[0]))
    clock = Clock(work)
    views = case.problem.model.net_views
    for count in (work.check, *[work.rounds] * work.repeats):
        case.rounds(count)
        clock.tick(lambda: views(case.state.theta_P), count)
    clock.write(told.out, selfsame.__version__)
