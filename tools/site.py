"""The hook of mkdocs: the pages of the reference, written from the code at every build."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_config(config: Any) -> Any:
    """The navigation without pages of its first level that are not there."""
    config.nav = [one for one in config.nav if _there(Path(config.docs_dir), *one.values())]
    return config


def _there(docs: Path, page: Any) -> bool:
    return not isinstance(page, str) or (docs / page).is_file()


def on_files(files: Files, config: Any) -> Files:
    """Add docs/reference/*.md."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import reference

    for name, write in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=write()))
    return files
