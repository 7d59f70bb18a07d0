"""`python tools/reference FOLDER` writes the pages of the reference."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # of the package, and not its own folder, whose names are common ones

from reference import PAGES  # noqa: E402


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (folder / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
