"""The tables and figures of the papers, and the recipe files that repeat them.

FDML's are not among them: their accuracy is that of its section VII-C, which `bench/fdml.py` measures on finished runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfsame.errors import SelfsameError
from selfsame.fields import nearest


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure of a paper."""

    kind: str  # table or figure
    number: str  # as the paper prints it
    what: str
    recipes: tuple[str, ...]  # file names without their ending
    figures: tuple[str, ...] = ()  # those of the recipe's that it shows; none: all

    @property
    def name(self) -> str:
        return f"{self.kind.capitalize()} {self.number}"

    @property
    def option(self) -> str:
        return f"--{self.kind} {self.number}"


_HIDE = ("fedhide-cifar100", "fedhide-voxceleb1", "fedhide-vggface2")
_UV = ("feduv-fig4-mnist-uv", "feduv-fig4-celeba", "feduv-fig4-voxceleb")
_XC = ("fedaws-table3-amazoncat", "fedaws-table3-amazon670k", "fedaws-table3-wikilshtc")

PAPERS: dict[str, tuple[Exhibit, ...]] = {
    "fedaws": (
        Exhibit("table", "1", "P@1 on CIFAR", ("fedaws-table1-cifar10", "fedaws-table1-cifar100")),
        Exhibit("table", "3", "P@k on extreme classification", _XC),
        Exhibit("table", "4", "P@k over k and lambda", ("fedaws-table4-amazoncat",)),
    ),
    "feduv": (
        Exhibit("figure", "3", "P@1 over rounds with and without the negative term of (3)", ("feduv-fig3-mnist-uv",)),
        Exhibit("figure", "4", "ROC of three code lengths, softmax and FedAwS", _UV),
    ),
    "fedmetric": (
        Exhibit("table", "2", "one-class AUROC", ("fedmetric-table2-mnist", "fedmetric-table2-cifar10")),
        Exhibit("figure", "2", "AUROC over lambda", ("fedmetric-fig2-cifar10",)),
        Exhibit("figure", "3", "AUROC over s", ("fedmetric-fig3-cifar10",)),
    ),
    "fedhide": (
        Exhibit("table", "3", "cosine of true and shared prototypes", _HIDE[:1], ("cos_mean", "cos_std")),
        Exhibit("table", "4", "accuracy and prototype leakage (17)", _HIDE, ("p@1", "eer", "leak", "recovered")),
    ),
}


def find_exhibits(paper: str, table: str | None = None, figure: str | None = None) -> list[Exhibit]:
    """The exhibits that are meant; all of the paper's where none is named."""
    if paper == "fdml":
        raise SelfsameError("fdml: its tables are measured on finished runs, by bench/fdml.py (docs/results/fdml.md)")
    if paper not in PAPERS:
        raise SelfsameError(f"unknown paper {paper!r}{nearest(paper, PAPERS)}; the papers are: {', '.join(PAPERS)}")
    asked = [(kind, number) for kind, number in (("table", table), ("figure", figure)) if number is not None]
    found = []
    for kind, number in asked:
        hits = [one for one in PAPERS[paper] if one.kind == kind and one.number.lower() == number.lower()]
        if not hits:
            known = ", ".join(one.option for one in PAPERS[paper])
            raise SelfsameError(f"--{kind} {number}: {paper} has no recipe for it; there are: {known}")
        found += hits
    return found or list(PAPERS[paper])


def recipe_file(folder: Path | None, name: str) -> Path:
    """Where a recipe of the papers lies: in this folder, in recipes/ here, or beside the package."""
    places = [folder] if folder is not None else [Path("recipes"), Path(__file__).parents[2] / "recipes"]
    for place in places:
        if (place / f"{name}.toml").is_file():
            return place / f"{name}.toml"
    raise SelfsameError(f"{places[0] / name}.toml: no such recipe; name the folder of recipes with --recipes")
