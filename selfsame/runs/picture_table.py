"""The page of FedHide's Table 2 in its folder: what its file of cases tells, and what is left to be attacked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import Exhibit
from selfsame.config.picture_attacks import NETWORKS, READ, TAKEN, Key, PictureSettings, cases
from selfsame.data import DATASETS
from selfsame.errors import SelfsameError
from selfsame.files import locked, write
from selfsame.report.exhibit_page import FORMAT, exhibit_files, page_again, tells
from selfsame.report.picture_cases import PSNR, Case, sound, sound_cases
from selfsame.report.picture_grid import Pictures, drawn_grid, read_pictures
from selfsame.report.picture_page import pictures_plain
from selfsame.runs.inversions import picture_file
from selfsame.runs.paper_recipes import unplaced
from selfsame.runs.sharing import finished

Plain = dict[str, Any]


@dataclass
class PictureTable:
    """What is known of the table while it is made."""

    exhibit: Exhibit
    folder: Path
    settings: PictureSettings
    because: str = ""  # how what the command line sets was chosen
    only: Sequence[str] = ()
    judged: bool = False  # whether LPIPS is asked for
    missing: list[Plain] = field(init=False, default_factory=list)
    told: str = field(init=False, default="")  # why data are missing, with the places of this machine

    @property
    def file(self) -> Path:
        """Of the finished cases."""
        return self.folder / f"{self._name}.jsonl"

    @property
    def page(self) -> Path:
        return self.folder / f"{self._name}.md"

    @property
    def drawing(self) -> Path:
        return self.folder / f"{self._name}.png"

    @property
    def _name(self) -> str:
        return f"{self.exhibit.kind}-{self.exhibit.number.lower()}"

    def counts(self, line: Plain) -> bool:
        """Whether a line is a finished case: sound, and with LPIPS where that is asked for."""
        try:
            case = sound(line, self.settings)
        except SelfsameError:
            return False
        wanted = len(self.settings.sides) if self.judged else 0
        return case is not None and len(case["found"]) > wanted

    def left(self, wanted: Sequence[Key]) -> list[Key]:
        """The cases that the file lacks."""
        known = [line["key"] for line in finished(self.file) if self.counts(line)]
        return [key for key in wanted if key not in known]

    def passed_over(self) -> list[str]:
        """What the file has and the page has not, in words."""
        _, wrong, others = self._cases()
        out = [f"{self.file}: {len(wrong)} lines are no finished attacks; the first: {wrong[0]}"] if wrong else []
        return [*out, *([f"{self.file}: {others} lines are of other settings"] if others else [])]

    def _cases(self) -> tuple[list[Case], list[str], int]:
        return sound_cases(finished(self.file), self.settings)

    def lacks(self, why: str, path: Path | None, wants: str, runs: int) -> None:
        """The data are not there."""
        data = self.settings.data
        self.told = f"{data}: {why}"
        why = unplaced(why, path)
        self.missing = [{"recipe": self._name, "data": data, "runs": runs, "why": why, "wants": wants, "variants": []}]

    def plain(self) -> Plain:
        """What the page says, ready for JSON."""
        found, _, _ = self._cases()
        return {
            "format": FORMAT,
            "paper": "fedhide",
            "exhibit": self.exhibit.name,
            "title": f"FedHide, {self.exhibit.name}",
            "what": self.exhibit.what,
            "file": self._name,
            "command": self._command(found),
            "parts": [],
            "timings": {},
            "pictures": pictures_plain(self.settings, found, self.because),
            "missing": self.missing,
        }

    def _command(self, found: Sequence[Case]) -> str:
        needs = DATASETS[self.settings.data].needs_path
        lpips = self.judged or any(set(case["found"]) - {PSNR} for case in found)
        options = [*(["--path DATA"] if needs else []), *(["--lpips FILE"] if lpips else [])]
        options += [f"--only {shlex.quote(text)}" for text in self.only]
        for text in self.settings.changed():
            name, _, value = text.partition(" ")
            options.append(f"{name} {shlex.quote(value)}")
        options += [f"--chosen {shlex.quote(self.because)}"] if self.because else []
        return " ".join(["selfsame paper fedhide", self.exhibit.option, *options])

    def write(self) -> Path | None:
        """Write the page with all that the file tells by now; None where that is nothing and a page is to stay."""
        with locked(self.file) if self.file.is_file() else nullcontext():  # the last to write has read the last line
            plain = self.plain()
            if not tells(plain) and tells(page_again(self.page.with_suffix(".json"))):
                return None
            for name, content in exhibit_files(plain).items():
                write(self.folder / name, content)
        return self.page

    def draw(self) -> None:
        """Originals beside what was found of them, of the first seed, where pictures are at hand."""
        seed, folder = self.settings.seeds[0], self.file.with_name(f"{self.file.stem}-pictures")
        if not folder.is_dir():
            return
        rows: dict[str, list[Pictures | None]] = {}
        first: Pictures | None = None
        for key in cases(self.settings):
            both = read_pictures(picture_file(folder, key)) if key["seed"] == seed else None
            if both is not None:
                first = both[0] if first is None else first
                label = key["method"] + ("" if key["attacker"] == TAKEN else f", {READ}, n = {key['size']}")
                rows.setdefault(label, [None] * len(NETWORKS))[NETWORKS.index(key["network"])] = both[1]
        if first is not None:
            write(self.drawing, drawn_grid({"original": [first] * len(NETWORKS), **rows}, NETWORKS))
