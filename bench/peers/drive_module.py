"""selfsame as it is where there is no C compiler: the network's passes are those of its module."""

from __future__ import annotations

from drive_selfsame import main

if __name__ == "__main__":
    main(compile="off")
