"""A data set by name: how to load it, what it needs, and the options it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from selfsame.data.federation import Federation
from selfsame.errors import SelfsameError
from selfsame.fields import check_options, options_of

WIDE = {"channels": (16, 32)}  # 8x8 images are small enough to afford more channels than LeNet's 8 and 4


@dataclass(frozen=True)
class DataSet:
    """A data set: how to load it, what it needs, and the network that suits it.

    `load` takes the path, where one is needed, then the `shared` options, where there are any, and its own options as
    keyword-only parameters.
    """

    name: str
    load: Callable[..., Federation]
    needs_path: bool
    wants: str  # which files, and where a user gets them
    net: str
    width: int  # of the embedding
    net_options: dict[str, Any] = field(default_factory=dict)
    file: bool = False  # the path may name a file
    faults: Callable[[Path], Iterable[str]] | None = None  # a line for each unreadable file, where loading stops at one
    shared: Any = None  # a frozen dataclass: the options of a family of data sets, with the defaults of this one
    fixed: tuple[str, ...] = ()  # those of the family that this one does not offer
    whole: Callable[[Path, Mapping[str, Any]], Any] | None = None  # its rows with all labels, by path and options
    apart: str = ""  # its option for the share of samples that take the test's place, where it has one of its own

    @property
    def _offered(self) -> dict[str, Any]:
        parts = fields(self.shared) if self.shared is not None else ()
        return {part.name: getattr(self.shared, part.name) for part in parts if part.name not in self.fixed}

    @property
    def options(self) -> dict[str, Any]:
        """The options and their defaults: its own, then those that it shares with its family."""
        return {**options_of(self.load), **self._offered}

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, each known, of its type and, where it is the family's, within its bounds."""
        found = check_options(self.name, options, self.options)
        for part in fields(self.shared) if self.shared is not None else ():
            if part.name in found and "bounds" in part.metadata:
                within(self.name, *part.metadata["bounds"], **{part.name: found[part.name]})
        return found

    def open(self, path: Path | None, options: Mapping[str, Any]) -> Federation:
        """Load it; the path and the options have been checked."""
        common = {name: value for name, value in options.items() if name in self._offered}
        own = {name: value for name, value in options.items() if name not in common}
        first = [] if path is None else [path]
        if self.shared is None:
            return self.load(*first, **own)
        return self.load(*first, replace(self.shared, **common), **own)


def bounded(default: Any, least: float, most: float = 1_000_000) -> Any:
    """A field of shared options that must be from `least` to `most`."""
    return field(default=default, metadata={"bounds": (least, most)})


def within(name: str, least: float, most: float, /, **options: float) -> None:
    """Refuse options of a data set that are not from `least` to `most`."""
    for option, value in options.items():
        if not least <= value <= most:
            raise SelfsameError(f"{name}: {option} must be {least} to {most}, got {value}")
