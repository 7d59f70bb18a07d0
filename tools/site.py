"""The hook of mkdocs: the pages of the reference, written from the code at every build."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_config(config: Any) -> Any:
    """The navigation without pages that are not written yet; `tests/test_docs.py` knows which those may be."""
    config.nav = _written(config.nav, Path(config.docs_dir))
    return config


def _written(nav: list[Any], docs: Path) -> list[Any]:
    out: list[Any] = []
    for one in nav:
        title, page = next(iter(one.items())) if isinstance(one, dict) else ("", one)
        if isinstance(page, list):
            out.append({title: _written(page, docs)})
        elif page.startswith("reference/") or (docs / page).is_file():
            out.append(one)
    return out


def on_files(files: Files, config: Any) -> Files:
    """Add docs/reference/*.md."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import reference

    for name, write in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=write()))
    return files
