"""The tables and figures of the papers, the recipe files that repeat them, and how their figures are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from selfsame.errors import SelfsameError
from selfsame.fields import nearest

UNTRAINED, FIXED, NO_NEGATIVES = "untrained network", "fixed vectors", "no negative term"  # the controls


@dataclass(frozen=True)
class Pane:
    """One pair of axes of a figure.

    `rounds`: figures over rounds; `over`: over a value of the recipe; `roc`: a protocol's curves; `plane`: one figure
    against another; `space`: the embedding space, one pane a run.
    """

    kind: str
    title: str = ""
    variants: str = ""  # a pattern of their titles; empty: all
    x: str = ""  # what stands at the axes
    y: str = ""
    figures: tuple[str, ...] = ()
    key: str = ""  # over: the recipe's key along the horizontal axis; roc: the protocol
    absent: str = ""  # over: what stands for variants whose method lacks the key; empty: they are not drawn
    said: tuple[tuple[float, float, str], ...] = ()  # points that the paper's text gives


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure of a paper."""

    kind: str  # table or figure
    number: str  # as the paper prints it
    what: str
    recipes: tuple[str, ...]  # file names without their ending
    figures: tuple[str, ...] = ()  # those of the recipe's that it shows; none: all
    beside: tuple[str, ...] = ()  # figures that the paper does not report and that are shown all the same
    variants: str = ""  # a pattern of the titles that it shows; empty: all
    panes: tuple[Pane, ...] = ()
    timed: bool = False  # seconds of the enclave in place of runs
    pictures: bool = False  # attacks on pictures in place of runs; asked for by name alone

    @property
    def name(self) -> str:
        return f"{self.kind.capitalize()} {self.number}"

    @property
    def option(self) -> str:
        return f"--{self.kind} {self.number}"

    @property
    def curves(self) -> tuple[str, ...]:
        """The protocols whose curves it draws."""
        return tuple(pane.key for pane in self.panes if pane.kind == "roc")

    def shows(self, title: str) -> bool:
        """Whether a variant of this title is on it."""
        return re.search(self.variants, title) is not None


_HIDE = ("fedhide-cifar100", "fedhide-voxceleb1", "fedhide-vggface2")
_UV = ("feduv-fig4-mnist-uv", "feduv-fig4-celeba", "feduv-fig4-voxceleb", "feduv-fig4-audiomnist", "feduv-fig4-lfw")
_SMALL = ("delicious", "bibtex", "corel5k")  # sets of labels that stand in for the paper's larger ones
_XC = ("fedaws-table3-amazoncat", "fedaws-table3-amazon670k", "fedaws-table3-wikilshtc")
_PS = ("p@1", "p@3", "p@5")
_AUTH, _EERS = ("vii_c",), ("eer_seen", "eer")
_SAID = ((10.0, 80.0, "paper: all lie above and to the left"),)  # FedUV, section 6.4


def _accuracy(title: str, variants: str) -> Pane:
    return Pane("rounds", title, variants, "Round", "Accuracy (%)", ("p@1",))


def _precision(variants: str, name: str, key: str, absent: str = "") -> Pane:
    return Pane("over", "", variants, name, "Precision (%)", _PS, key, absent)


def _over(name: str, key: str) -> tuple[Pane, ...]:
    return (Pane("over", "", "", name, "AUROC (%)", ("one_class_auroc",), key, "0"),)


def _roc(title: str, protocol: str) -> Pane:
    return Pane("roc", title, "", "FPR (%)", "TPR (%)", key=protocol, said=_SAID)


def _space(number: str, method: str, variants: str) -> Exhibit:
    what = f"{method} by t-SNE: test samples, true prototypes and what is shared of them (figure of the supplement)"
    return Exhibit(
        "figure", number, what, _HIDE[:1], ("p@1", "leak"), (), variants, (Pane("space", variants=variants),)
    )


PAPERS: dict[str, tuple[Exhibit, ...]] = {
    "fedaws": (
        Exhibit("table", "1", "P@1 on CIFAR", ("fedaws-table1-cifar10", "fedaws-table1-cifar100")),
        Exhibit(
            "table",
            "3",
            "P@k on extreme classification",
            (*_XC, *(f"fedaws-table3-{name}" for name in _SMALL)),
            beside=_PS,
        ),
        Exhibit(
            "table",
            "4",
            "P@k over k and lambda",
            ("fedaws-table4-amazoncat", *(f"fedaws-table4-{name}" for name in _SMALL)),
            beside=_PS,
            panes=(
                _precision(r"^k = \w+(, lambda = 10)?$", "k", "method.neighbours", "all"),
                _precision(r"lambda = \d+$", "lambda", "method.spread_weight"),
            ),
        ),
    ),
    "feduv": (
        Exhibit(
            "figure",
            "3",
            "accuracy over rounds with and without the negative term of (3), on training and on test samples",
            ("feduv-fig3-mnist-uv",),
            panes=(Pane("rounds", "", "", "Round", "Accuracy (%)", ("p@1", "train_p@1")),),
        ),
        Exhibit(
            "figure",
            "4",
            "ROC of three code lengths, softmax and FedAwS",
            _UV,
            panes=(
                _roc("training data", "training samples"),
                _roc("test data", "test samples"),
                _roc("new users", "unseen impostors"),
            ),
        ),
    ),
    "fedmetric": (
        Exhibit("table", "2", "one-class AUROC", ("fedmetric-table2-mnist", "fedmetric-table2-cifar10")),
        Exhibit(
            "figure",
            "2",
            "AUROC over lambda",
            ("fedmetric-fig2-cifar10",),
            panes=_over("lambda", "method.negative_weight"),
        ),
        Exhibit("figure", "3", "AUROC over s", ("fedmetric-fig3-cifar10",), panes=_over("s", "method.scale")),
    ),
    "fedhide": (
        Exhibit("table", "2", "the pictures behind an update, by gradient inversion", (), pictures=True),
        Exhibit("table", "3", "cosine of true and shared prototypes", _HIDE[:1], ("cos_mean", "cos_std")),
        Exhibit("table", "4", "accuracy and prototype leakage (17)", _HIDE, ("p@1", "eer", "leak", "recovered")),
        Exhibit(
            "figure",
            "3",
            "accuracy over rounds, and against prototype leakage (17)",
            _HIDE[:1],
            ("p@1", "leak"),
            panes=(
                _accuracy("(a) FedGN", r"^FedGN"),
                _accuracy("(b) FedCS", r"^FedCS"),
                _accuracy("(c) FedHide", r"^FedHide"),
                Pane("plane", "(d)", "", "Prototype leakage (%)", "Accuracy (%)", ("leak", "p@1")),
            ),
        ),
        Exhibit(
            "figure",
            "4",
            "EER against prototype leakage (17)",
            _HIDE[1:],
            ("eer", "leak"),
            panes=(Pane("plane", "", "", "Prototype leakage (%)", "EER (%)", ("leak", "eer")),),
        ),
        _space("S1", "FedGN", r"^FedGN\(0\.[15]\)"),
        _space("S2", "FedCS", r"^FedCS\(0\.[15]\)"),
        _space("S3", "FedHide", r"^FedHide"),
    ),
    "fdml": (
        Exhibit(
            "table",
            "I",
            "accuracy of FDML and of FL-traditional",
            ("fdml-touchauth", "fdml-cameraauth"),
            _AUTH,
            _EERS,
            r"^FDML$|^FL,|shortcuts",
        ),
        Exhibit(
            "table",
            "II",
            "accuracy where participants fail",
            ("fdml-touchauth", "fdml-cameraauth"),
            _AUTH,
            _EERS,
            r"^FDML, exceptions",
        ),
        Exhibit("table", "III", "TouchAuth with noise", ("fdml-touchauth",), _AUTH, _EERS, r"^FDML$|rate_p|epsilon"),
        Exhibit(
            "table",
            "IV",
            "CameraAuth with noise",
            ("fdml-cameraauth",),
            _AUTH,
            _EERS,
            r"^FDML$|rate_p|epsilon|Gaussian",
        ),
        Exhibit("table", "V", "seconds of the enclave for the derivatives of batch-all triplets", (), timed=True),
    ),
}
FOLDERS = {"fdml-cameraauth": "lfw"}  # where data that are read as plain folders lie below --path

# Seconds of Table V by the number of participants.
ENCLAVE_SECONDS = {64: 0.48, 128: 2.19, 256: 11.07, 512: 63.65}


def find_exhibits(paper: str, table: str | None = None, figure: str | None = None) -> list[Exhibit]:
    """The exhibits that are meant; where none is named all of the paper's but those that attack pictures."""
    if paper not in PAPERS:
        raise SelfsameError(f"unknown paper {paper!r}{nearest(paper, PAPERS)}")
    asked = [(kind, number) for kind, number in (("table", table), ("figure", figure)) if number is not None]
    found = []
    for kind, number in asked:
        hits = [one for one in PAPERS[paper] if one.kind == kind and one.number.lower() == number.lower()]
        if not hits:
            known = ", ".join(one.option for one in PAPERS[paper])
            raise SelfsameError(f"--{kind} {number}: {paper} has no recipe for it; there are: {known}")
        found += hits
    return found or [one for one in PAPERS[paper] if not one.pictures]


def recipe_file(folder: Path | None, name: str) -> Path:
    """Where a recipe of the papers lies: in this folder, in recipes/ here, or beside the package."""
    usual = [Path("recipes"), Path(__file__).parents[2] / "recipes"]
    places = usual if folder is None else [folder, *usual]
    for place in places:
        if (place / f"{name}.toml").is_file():
            return place / f"{name}.toml"
    raise SelfsameError(f"{places[0] / name}.toml: no such recipe; name the folder of recipes with --recipes")
