"""Values to words, once: who sees a field, what became of a run, how a number reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfsame.privacy.accountant import PrivacySpent

SIGHTS = {
    "device": "nobody: stays on the device",
    "enclave": "attested enclave",
    "sum": "only the sum over a group",
    "server": "server",
    "public": "everyone",
}
AGGREGATIONS = {
    "clear": "the server reads every device's update, from which the vector that stands for its owner can be computed",
    "masked": "the server sees updates only as the sum over a group, once helpers that see none took the masks off",
    "enclave": "the server sees updates only as the sum over a group, which attested code clipped and added up",
}
REMEDIES = {
    "collapsed": "Every class ended at nearly the same place, so its other figures mean nothing. Give the term that "
    "pushes classes apart more weight, lower the learning rate, or start from a pretrained network.",
    "diverged": "The loss is no longer a finite number. Lower the learning rate, clip gradients, or turn off reduced "
    "precision, then start again from the last good checkpoint.",
    "gap": "Measure (17) understates what this method gives away. Judge it by the recovered share, and do not call its "
    "proxies anonymous.",
}
FACTS = {"exposure_ratio_log10": ("exposure ratio (3.2)", "10^{:.1f}")}  # a method's fact: its name, and how it reads
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def sight_words(name: str) -> str:
    """Who sees a field; what is no known sight speaks for itself."""
    return SIGHTS.get(name, name)


def sight_class(name: str) -> str:
    """The CSS class of a sight."""
    return name if name in SIGHTS else "other"


def left_words(field: str, sight: str) -> str:
    """A field that left the device, and who sees it."""
    return f"{field} → {sight_words(sight)}" if sight else field


def aggregation_words(aggregation: str, rows: Sequence[tuple[str, str, str, str]], terms: str = "") -> str:
    """What the server can read of updates, by a wire table; nothing where it gets none from devices."""
    read = any(name == "network update" and sight in ("server", "sum") for name, _, sight, _ in rows)
    return f"aggregation {aggregation}: {AGGREGATIONS[aggregation]}{terms}" if read else ""


def group_words(sizes: Sequence[int], least: int) -> str:
    """Over how many devices sums are, and from how many answers on there is one."""
    few, most = min(sizes), max(sizes)
    many = f"{few}" if few == most else f"{few} to {most}"
    return f"; {len(sizes)} groups of {many} devices, nothing of fewer than {least} answers"


def finding_words(finding: Mapping[str, Any]) -> str:
    """What a run has to be warned of, as a sentence."""
    kind = finding["kind"]
    if "words" in finding:
        return str(finding["words"])
    if kind == "collapsed":
        alike, right, chance = finding["alike"], finding["p@1"] or 0.0, 1 / finding["classes"]
        near = "" if alike is None else f"samples of different classes have a mean cosine of {alike:.3f}, "
        return f"collapsed: {near}P@1 is {percent(right)} % and chance {percent(chance)} %. {_remedy(finding)}"
    if kind == "diverged":
        return (
            f"diverged: loss or network stopped being finite between rounds {finding['first']} and {finding['round']}. "
            f"Lower local.lr (now {finding['local_lr']}) or server.lr (now {finding['server_lr']}), or the method's "
            "weights; the last checkpoint is from before"
        )
    if kind == "worse":
        keep = "" if finding["keep"] else ", or hold on to what the network knew (net.keep=1)"
        return (
            f"worse than the network that was given: EER on unseen people is {percent(finding['after'])} % and was "
            f"{percent(finding['before'])} % before training. Lower local.lr (now {finding['local_lr']:g}){keep}"
        )
    if kind == "refused":
        return f"{finding['count']} client updates were refused because they were not finite"
    return str(kind)


def _remedy(finding: Mapping[str, Any]) -> str:
    """What fits the cause; findings of earlier versions have none."""
    cause = finding.get("cause")
    if cause == "method":
        return f"{finding['method']} pushes no classes apart: use fedaws, fedhide or feduv"
    if cause == "rate":
        least, loss = finding["least"], finding["loss"]
        rose = "" if least is None or loss <= least else f"The loss rose from {least:.3g} to {loss:.3g}: "
        return f"{rose}{'lower' if rose else 'Lower'} local.lr (now {finding['local_lr']})"
    if cause == "rounds":
        return f"{finding['rounds']:,} rounds are too few: give it more (--rounds {2 * finding['rounds']})"
    if cause == "weight":
        return (
            f"Try another {finding['weight']} (now {finding['value']:g}): too little pushes no classes apart, too much "
            "leaves samples without a hold on their own"
        )
    return "Give the term that pushes classes apart more weight, lower the learning rate, or train longer"


def number_words(number: int) -> str:
    """A count at the beginning of a sentence."""
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def finite(value: Any) -> float | None:
    """The value as a finite float, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as per cent without the sign, and a dash for what is not known."""
    value = finite(value)
    return "–" if value is None else f"{100 * value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds with the precision that matters."""
    value = finite(seconds)
    return "–" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def span_words(seconds: float) -> str:
    """A stretch of time as people say it."""
    if 0 < seconds < 0.05:
        return f"{1000 * seconds:.2g} ms"
    for most, unit, word in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            number = seconds / unit
            return f"{number:.1f} {word}" if number < 10 and word != "min" else f"{number:.0f} {word}"
    return f"{seconds / 86_400:.0f} days"


def attacker_words(how: str, exposed: bool) -> str:
    """What the attacker did: in the method's words, or that there was nothing to do."""
    nothing = "nothing that stands for the owner leaves the device"
    return how or ("the server holds the vectors themselves" if exposed else nothing)


def updates_words(share: float, cosine: float, group: int, rows: int) -> str:
    """What network updates give away by themselves, beside what a guess would."""
    seen = "single updates" if group == 1 else f"sums over {group} devices"
    bound = "" if group == 1 else f", one in {group} is {percent(1 / group)} %"
    got = f"{seen} identify {percent(share)} % (cosine {cosine:.3f})"
    return f"{got}; by chance {percent(1 / rows)} %{bound}"


def fact_words(values: Mapping[str, float]) -> dict[str, str]:
    """What a method says of itself; a fact that no words are known for goes by its own name."""
    shown = {name: FACTS.get(name, (name, "{:g}")) for name in values}
    return {title: form.format(values[name]) for name, (title, form) in shown.items()}


def privacy_words(spent: PrivacySpent) -> str:
    """Both epsilons of the device that took part most often."""
    known = f"epsilon not known ({spent.why})" if spent.epsilon is None else f"epsilon {spent.epsilon:.4g}"
    known += f" ({spent.why})" if spent.why and spent.epsilon is not None else ""
    words = f"{known} at delta {spent.delta:g} over the {spent.rounds} rounds of the device with most"
    if spent.paper_epsilon is not None:
        words += f"; the paper's epsilon: {spent.paper_epsilon:.4g}"
    return words + ". Noise from the seed of a simulation protects nobody"
