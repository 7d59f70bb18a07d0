"""FedHide's Table 2 as a page: the paper's LPIPS beside ours, what our attacker finds, and what there is without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from selfsame.config.picture_attacks import (
    ANY,
    COHORT,
    DATA,
    NETWORKS,
    OTHERS,
    READ,
    ROUNDS,
    TABLE,
    TAKEN,
    PictureSettings,
)
from selfsame.errors import SelfsameError
from selfsame.report.beside import LEFT, RUN_WITH, as_printed
from selfsame.report.picture_cases import (
    FOUND,
    PSNR,
    SIDE,
    attacks_left,
    found_of,
    known_by,
    machine_of,
    mean_of,
    measures,
    right_of,
    settings_of,
    some,
    told_by,
)
from selfsame.report.table import Sheet, marked_down
from selfsame.report.words import duration

Plain = Mapping[str, Any]
_DIGITS = {PSNR: 1}  # of LPIPS two
_OF_MEANS = ("found", "chance", "blank")
_SEEDS = "Seeds"  # the column of a page that has several
_NO_LPIPS = "Without LPIPS, which wants its published weights (--lpips FILE): PSNR alone, of which the paper has none."
_SIZE = (
    "**LPIPS cannot be held to the paper's: it grows with the side of the pictures, which the paper does not give.** "
    "What can be compared is the order of rows and what training changes, in each column by itself."
)
_TAKEN = (
    "The paper's attacker, as we read it, takes what a device shares for its prototype, and has one device's update."
)
_READ = (
    "Our attacker looks for the prototype together with the picture, from where the last layer's update gives it away, "
    "and has the mean of n devices' updates. The gradient of an untrained network does not depend on proxies: one row "
    "stands for all methods of the table. FedCrowd and softmax share no proxy."
)
_CONTROLS = (
    "Without an attack: unrelated is another client's picture in the place of what was found, the mean over up to 64; "
    "best of n the closest of as many unrelated pictures as the group has devices, on average; blank the mean of these "
    "pictures. A figure that is not better than all three shows nothing. LPIPS: lower is closer; PSNR, in dB: higher."
)
_GIVEN = (
    "The paper gives: CIFAR-100, ResNet-18 before training and after 100,000 rounds of 10 of 100 clients, loss (1), "
    "one picture each of sea, flower, chair and porcupine, attack and LPIPS by their authors' code. It does not give: "
    "which pictures, which of five flowers, the width of the embedding, iterations, restarts, step and weight of the "
    "total variation, LPIPS's version, network and picture size, what its ± is taken over, and what the attacker takes "
    "for the prototype. Ours are the picture that a client draws first, and LPIPS v0.1 with AlexNet."
)
_CHOSEN = (
    "How settings were chosen: the weight of the total variation, 0.01, among 0.001, 0.01, 0.05 and 0.2 with the "
    "answer at hand, on the pictures of sea, sunflower, chair and porcupine, at n = 1; no other choice by these "
    "figures is on record."
)


def picture_lines(pictures: Plain) -> Iterator[str]:
    """The tables of a page and what is said below them, as Markdown."""
    yield _comparable(pictures)
    for sheet in picture_sheets(pictures):
        yield f"\n## {marked_down(sheet.title)}\n"
        yield sheet.markdown().rstrip("\n")
    yield ""
    for said in picture_remarks(pictures):
        yield f"- {marked_down(said)}"


def _comparable(pictures: Plain) -> str:
    """What a reader must know before any figure."""
    settings = settings_of(pictures)
    count, seeds = settings.targets, len(settings.seeds)
    few = f"{_count(count, 'picture')} and {_count(seeds, 'seed')}"
    several = "± is half the range over seeds; a figure of one seed has none."
    spread = several if seeds > 1 else "± is the deviation over the pictures."
    words = f"{few[:1].upper()}{few[1:]}: differences within ± say nothing. {spread}"
    without = pictures["cases"] and measures(pictures) == [PSNR]
    return f"{_NO_LPIPS if without else _SIZE} {words}"


def _count(number: int, what: str) -> str:
    words = {1: "one", 2: "two", 3: "three", 4: "four"}.get(number, f"{number}")
    return f"{words} {what}" + ("" if number == 1 else "s")


def picture_sheets(pictures: Plain) -> list[Sheet]:
    """A table of the paper's attacker for each network, and one of ours."""
    networks = NETWORKS if settings_of(pictures).rounds else NETWORKS[:1]
    sheets = [_taken_sheet(pictures, network) for network in networks]
    return [*sheets, _read_sheet(pictures)] if some(pictures, attacker=READ) else sheets


def _taken_sheet(pictures: Plain, network: str) -> Sheet:
    """The paper's rows, its LPIPS beside ours, and what there is without an attack."""
    settings, names = settings_of(pictures), measures(pictures)
    told, trained = settings.data == DATA, network == NETWORKS[1]
    rows = []
    for title, attacked in TABLE.items():
        group = some(pictures, network=network, method=title, attacker=TAKEN)
        paper = attacked.paper[network] if told else None
        row = [title, *([as_printed(*attacked.paper[network], 2)] if told else [])]
        for name in names:
            row.append(_cell(pictures, group, "found", name))
            row += [_less(group, name, paper[0])] if paper and name != PSNR else []
        right = right_of(group)
        right_words = ["–" if right is None else f"{100 * right:.1f}"] if trained else []
        rows.append([*row, _found(group), *right_words, *_seeds(settings, group)])
    every = _one_each(some(pictures, network=network, attacker=TAKEN))
    for name, words in (("unrelated", "unrelated"), ("blank", "blank")):
        row = [f"{words} (control)", *(["–"] if told else [])]
        for measure in names:
            row += [_cell(pictures, every, name, measure), *(["–"] if told and measure != PSNR else [])]
        rows.append([*row, "–", *(["–"] if trained else []), *_seeds(settings, every)])
    columns = ["Method", *(["Paper,\nLPIPS"] if told else [])]
    for name in names:
        columns += [_label(name), *(["Difference"] if told and name != PSNR else [])]
    columns += ["Found", *(["P@1 %"] if trained else []), *_seeds_column(settings)]
    title = f"{network.capitalize()} network, the proxy taken for the prototype"
    lose = [*(place for place, column in enumerate(columns) if column == "Difference"), columns.index(_label(PSNR))]
    return Sheet(columns, rows, title, words=_in_words(columns, 0), lose=lose)


def _read_sheet(pictures: Plain) -> Sheet:
    """A row for each network, method and number of devices in the mean, beside the closest of as many others."""
    settings, names, rows = settings_of(pictures), measures(pictures), []
    titles = (ANY, *TABLE, *OTHERS)
    for network in NETWORKS:
        mine = some(pictures, network=network, attacker=READ)
        for title in (title for title in titles if any(case["method"] == title for case in mine)):
            for size in sorted({case["size"] for case in mine if case["method"] == title}):
                group = [case for case in mine if (case["method"], case["size"]) == (title, size)]
                right = right_of(group)
                where = network if right is None else f"{network}, P@1 {100 * right:.1f} %"
                found, *rest = ([_cell(pictures, group, name, one) for one in names] for name in _OF_MEANS)
                rows.append([where, title, str(size), *found, _found(group), *chain(*rest), *_seeds(settings, group)])
    columns = ["Network", "Method", "n", *map(_label, names), "Found"]
    columns += [f"{words},\n{_label(name)}" for words in ("best of n", "blank") for name in names]
    columns += _seeds_column(settings)
    lose = range(len(columns) - 1, 3, -1)
    title, words = "The prototype read off the update", _in_words(columns, 0, 1)
    return Sheet(columns, rows, title, words=words, whole=(1, 2), lose=lose)


def _in_words(columns: Sequence[str], *first: int) -> list[int]:
    """The columns that hold no figures: the first ones, and the seeds."""
    return [*first, *(place for place, column in enumerate(columns) if column == _SEEDS)]


def _seeds_column(settings: PictureSettings) -> list[str]:
    return [_SEEDS] if len(settings.seeds) > 1 else []


def _seeds(settings: PictureSettings, group: Sequence[Plain]) -> list[str]:
    """Those of a row, where a page has several."""
    known = ", ".join(str(case["seed"]) for case in group)
    return [known or "–"] if _seeds_column(settings) else []


def _one_each(group: Sequence[Plain]) -> list[Plain]:
    """One case of each seed, with LPIPS where any has it: what there is without an attack is the same for all."""
    found: dict[int, Plain] = {}
    for case in group:
        if case["seed"] not in found or len(case["found"]) > len(found[case["seed"]]["found"]):
            found[case["seed"]] = case
    return list(found.values())


def _label(measure: str) -> str:
    if measure == PSNR:
        return "PSNR"
    side = int(measure.removeprefix(SIDE))
    return f"LPIPS,\n{side}x{side}" if side else "LPIPS,\nas they are"


def _cell(pictures: Plain, group: Sequence[Plain], name: str, measure: str) -> str:
    found, digits = mean_of(group, name, measure, len(settings_of(pictures).seeds) > 1), _DIGITS.get(measure, 2)
    if found is None:
        return "–"
    return f"{found[0]:.{digits}f}" + ("" if found[1] is None else f" ± {found[1]:.{digits}f}")


def _less(group: Sequence[Plain], measure: str, paper: float) -> str:
    found = mean_of(group, "found", measure, several=True)
    return "–" if found is None else f"{round(found[0] - paper, 2) + 0.0:+.2f}"


def _found(group: Sequence[Plain]) -> str:
    found = found_of(group)
    return "–" if found is None else f"{found[0]} of {found[1]}"


def picture_remarks(pictures: Plain) -> list[str]:
    """What is said below the tables."""
    settings, out = settings_of(pictures), [_TAKEN]
    out += [_READ] if some(pictures, attacker=READ) else []
    if f"{SIDE}0" in measures(pictures):
        small = "32x32 those of CIFAR-100, and each pixel of smaller ones a square"
        out.append(f"Found: pictures whose LPIPS as they are ({small}) is below {FOUND:g}.")
    out += [_CONTROLS]
    out += [_GIVEN] if settings.data == DATA else []
    out += [_CHOSEN, _settings_words(settings)]
    if changed := settings.changed():
        how = f" How these were chosen: {pictures['chosen']}." if pictures["chosen"] else ""
        out.append(f"Set on the command line: {', '.join(changed)}.{how}")
    out.append(f"Seeds: {', '.join(map(str, settings.seeds))}.")
    if pictures["cases"]:
        out += _left(attacks_left(pictures), len(settings.seeds) > 1)
    sizes = told_by(pictures, lambda case: f"{case['parameters']:,}" if case.get("parameters") else "")
    out += [f"Parameters of the network: {'; '.join(sizes)}."] if sizes else []
    out += [f"{RUN_WITH}{words}." for words in told_by(pictures, machine_of)]
    if spent := [case["seconds"] for case in pictures["cases"]]:
        out.append(f"{len(spent)} attacks took {duration(min(spent))} to {duration(max(spent))} s each.")
    return out


def _left(cases: Sequence[Plain], several: bool) -> list[str]:
    """The attacks that have not been made, those alike together."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for case in cases:
        seeds.setdefault((f"{case['network']}, {_how(case)}", case["method"]), []).append(case["seed"])
    named: dict[str, list[str]] = {}
    for (how, method), those in seeds.items():
        words = f", seed{'s' * (len(those) > 1)} {', '.join(map(str, those))}" if several else ""
        named.setdefault(how + words, []).append(method)
    said = [f"{', '.join(titles)} ({how})" for how, titles in named.items()]
    return [f"{LEFT}{'; '.join(said)}."] if said else []


def _how(case: Plain) -> str:
    return "proxy taken" if case["attacker"] == TAKEN else f"read, n = {case['size']}"


def _settings_words(settings: PictureSettings) -> str:
    """What was trained and how pictures were looked for."""
    beside = settings.data == DATA
    rounds = f"{settings.rounds:,} rounds" + (f" (paper: {ROUNDS:,})" if beside else "")
    cohort = f"{settings.cohort} clients" + (f" (paper: {COHORT})" if beside else "")
    net = settings.net or ("ResNet-18" if beside else "the data set's own network")
    kernels = ", its kernels standardised" if settings.standardise else ""
    trained = f", trained for {rounds} of {cohort} with batches of 16" if settings.rounds else ""
    times = "begun once" if settings.restarts == 1 else f"begun {settings.restarts} times"
    return (
        f"Network: {net}{kernels}{trained}, on {settings.data}. Attack: {_count(settings.batch, 'picture')} a device, "
        f"Adam on the sign of the derivative, step {settings.step:g}, {settings.iterations:,} iterations, {times}, "
        f"weight {settings.variation:g} of the total variation, tensors weighed {settings.weights}."
    )


# From calls


def pictures_plain(settings: PictureSettings, found: Sequence[Plain], because: str = "") -> dict[str, Any]:
    """What a page tells, ready for JSON; `because`: how what the command line set was chosen."""
    return {"settings": settings.plain(), "chosen": because, "cases": sorted(found, key=_place)}


def _place(case: Plain) -> tuple[Any, ...]:
    """In the order of the tables."""
    titles = (ANY, *TABLE, *OTHERS)
    where = (case["attacker"] == READ, titles.index(case["method"]), case["size"])
    return NETWORKS.index(case["network"]), *where, case["seed"]


def joined_pictures(ours: Plain, theirs: Plain) -> dict[str, Any]:
    """The cases of both pages; where both tell of one, the first one's stays."""
    if not ours or not theirs:
        return dict(ours or theirs)
    one, other = settings_of(ours), settings_of(theirs)
    union: dict[str, Any] = {
        name: [*getattr(one, name), *(more for more in getattr(other, name) if more not in getattr(one, name))]
        for name in ("seeds", "sizes", "sides")
    }
    union |= {"read": "; ".join(dict.fromkeys([*one.readable(), *other.readable()]))}
    mine, its = ({**settings.plain(), **union} for settings in (one, other))
    if differs := [name for name in mine if mine[name] != its[name]]:
        raise SelfsameError(f"were attacked with another {', '.join(differs)} each")
    known = {known_by(case) for case in ours["cases"]}
    found = [*ours["cases"], *(case for case in theirs["cases"] if known_by(case) not in known)]
    chosen = "; ".join(dict.fromkeys(page["chosen"] for page in (ours, theirs) if page["chosen"]))
    settings = settings_of({"settings": mine})
    return pictures_plain(settings, found, chosen)
