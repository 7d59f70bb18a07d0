"""The hook of mkdocs: the pages of the reference, written from the code at every build."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_files(files: Files, config: Any) -> Files:
    """Add docs/reference/*.md."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import reference

    for name, write in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=write()))
    return files
