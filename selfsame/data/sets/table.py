"""A table with one row per sample and one column that says whose it is: any CSV file with a header."""

from __future__ import annotations

from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.csv_table import find_csv
from selfsame.data.tables import TableOptions, federate_table

WANTS = (
    "a CSV file (commas, semicolons or tabs) with a header and a column that says whose each row is (option user), "
    "alone in the folder PATH"
)


def load_table(path: Path, options: TableOptions, *, unseen_share: float = 0.2) -> Federation:
    """Rows of numbers, one client per value of the column `user`; a share of the people (`unseen_share`) is unseen.

    `columns` and `without` are names, or patterns such as sensor_*, with commas between them. A cell that is empty, NaN
    or infinite is `missing`: an error, a reason to drop its row, or the mean of its column. Means, and the standard
    deviations by which columns are divided, are those of the clients' training rows. Of each unseen person at most
    `unseen_samples` rows are kept, and `trials` pairs of them are drawn.
    """
    return federate_table("table", find_csv(path, WANTS), options, unseen_share)


TABLE = DataSet("table", load_table, True, WANTS, "mlp", 64, file=True, shared=TableOptions(test=5, unseen_samples=200))
