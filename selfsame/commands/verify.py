"""Commands that read what a device keeps of its users: verify, identify, users."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.commands.enrol import (
    Model,
    PassphraseFile,
    Resize,
    Store,
    asked_once,
    device_of,
    passphrase,
    store_folder,
)
from selfsame.commands.options import MovedTo, TrustCode
from selfsame.commands.progress import table_of
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.device.attempts import Attempts
    from selfsame.device.card import Raw
    from selfsame.device.verifier import Unlocked, Verdict, Verifier

_LONGEST_LINE = 1 << 16
AsJson = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each decision.")]

Trial = tuple[str, str, "list[Raw]"]  # the user who is claimed, what the samples are called, the samples


def verify(
    model: Model,
    user: Annotated[str | None, typer.Argument(help="The user's name on this device.")] = None,
    samples: Annotated[
        list[Path] | None, typer.Argument(help="Samples, each an attempt: pictures, NPY, WAV, CSV, folders.")
    ] = None,
    trials: Annotated[
        Path | None, typer.Option("--trials", help="In place of these: a CSV file with the columns user and sample.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="In place of samples: a path a line on standard input, JSON a line out.")
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="One decision over all samples: on their mean score.")
    ] = False,
    score: Annotated[
        bool, typer.Option("--score", help="Print scores as well; every attempt then counts as a failed one.")
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a table as CSV.")] = False,
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
    store: Store = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Say whether samples are a user's: exit code 0 if all are, 1 if one is not, 2 if that cannot be told.

    After 5 failed attempts in a row each takes a longer wait, after 50 none is taken; enrolling anew or a new
    passphrase lifts that. The rest of a folder or list is not tried then.
    """
    from selfsame.device.attempts import Attempts

    _fit_together(user, samples, trials, serve, as_json, as_csv)
    device = device_of(model, store, asked_once(passphrase(passphrase_file)), path, trust_code)
    desk = Desk(device, Attempts(device.vault), score)
    if serve:
        assert user is not None
        _serve(desk, user, sys.stdin, resize)
        return
    listed = _listed(device, user, samples or [], trials, together, resize)
    single = len(listed) == 1 and trials is None
    rejected = False
    if as_csv:
        _csv_line(["user", "sample", "accepted", *(("score", "threshold", "llr") if score else ())])
    for trial in listed:
        verdict = desk.attempt(trial[0], trial[2])
        rejected |= not verdict.accepted
        _print(_record(trial, verdict, score), as_json, as_csv, single)
    if rejected:
        raise typer.Exit(1)


@dataclass
class Desk:
    """Where attempts are counted and made; each user's enrolment is opened once, at the first of them."""

    device: Verifier
    attempts: Attempts
    shown: bool  # scores are: as many as a template has numbers give the template away
    opened: dict[str, Unlocked] = field(default_factory=dict)

    def attempt(self, user: str, samples: Sequence[Raw]) -> Verdict:
        """One decision, counted before anything is computed, so that one that is broken off counts."""
        self.begin(user)
        return self.decide(user, samples)

    def begin(self, user: str) -> None:
        import time

        self.attempts.begin(user, time.time())

    def decide(self, user: str, samples: Sequence[Raw]) -> Verdict:
        verdict = self.open(user).verify_together(samples)
        if verdict.accepted and not self.shown:
            self.attempts.forget(user)
        return verdict

    def open(self, user: str) -> Unlocked:
        """The user's enrolment, opened again where it has changed."""
        if user not in self.opened or self.opened[user].mark != self.device.vault.mark(user):
            self.opened[user] = self.device.unlock(user)
        return self.opened[user]


def _fit_together(
    user: str | None, samples: list[Path] | None, trials: Path | None, serve: bool, as_json: bool, as_csv: bool
) -> None:
    """Refuse options that exclude each other."""
    if as_json and as_csv:
        raise SelfsameError("--json: excludes --csv")
    if trials is not None and (user is not None or serve):
        raise SelfsameError("--trials: the list says whose each sample is; leave out the user and --serve")
    if trials is None and user is None:
        raise SelfsameError("verify: name the user, or a list with --trials")
    if serve == bool(samples) and trials is None:
        raise SelfsameError("verify: name samples, or --serve to read their paths from standard input")
    if serve and as_csv:
        raise SelfsameError("--serve: answers in JSON; leave out --csv")


def _listed(
    device: Verifier, user: str | None, paths: Sequence[Path], trials: Path | None, together: bool, resize: bool
) -> list[Trial]:
    """The attempts that are asked for; every sample is read before the first of them."""
    from selfsame.device.samples import read_named

    card = device.model.card
    claims = _trials(trials) if trials is not None else [(str(user), path) for path in paths]
    if together:
        out: list[Trial] = []
        for one in dict.fromkeys(claim for claim, _ in claims):
            named = read_named([path for claim, path in claims if claim == one], card, resize)
            out.append((one, f"{len(named)} samples", [raw for _, raw in named]))
        return out
    return [(one, name, [raw]) for one, path in claims for name, raw in read_named([path], card, resize)]


def _trials(file: Path) -> list[tuple[str, Path]]:
    """(user, path) of each row of a list; a first row that names the columns may be in any order."""
    from selfsame.files import read_text

    try:
        rows = [row for row in csv.reader(read_text(file).splitlines(), strict=True) if row]
    except csv.Error as error:
        raise SelfsameError(f"{file}: not CSV ({error})") from None
    order = (0, 1)
    if rows and {"user", "sample"} <= set(rows[0]):
        order = (rows[0].index("user"), rows[0].index("sample"))
        rows = rows[1:]
    if not rows:
        raise SelfsameError(f"{file}: no trials; expected rows of user, sample")
    for number, row in enumerate(rows, 1):
        if len(row) <= max(order):
            raise SelfsameError(f"{file}: trial {number}: expected user and sample, got {len(row)} cells")
    return [(row[order[0]], Path(row[order[1]])) for row in rows]


def _serve(desk: Desk, user: str, lines: Iterable[str], resize: bool) -> None:
    """One line of JSON for each path; what is wrong with a sample is said there, and the next is waited for."""
    from selfsame.device.samples import read_samples

    card = desk.device.model.card
    for line in lines:
        path = line.rstrip("\r\n")
        if not path:
            continue
        try:
            if len(path) > _LONGEST_LINE:
                raise SelfsameError("a line that is too long for a path")
            raw = read_samples([Path(path)], card, resize)
            if len(raw) != 1:
                raise SelfsameError(f"{path}: holds {len(raw)} samples, one is verified at a time")
            if not desk.device.vault.holds(user):
                break
            desk.begin(user)
        except SelfsameError as error:
            print(json.dumps({"user": user, "sample": path[:_LONGEST_LINE], "error": str(error)}), flush=True)
            continue
        print(json.dumps(_record((user, path, raw), desk.decide(user, raw), desk.shown)), flush=True)
    if not desk.device.vault.holds(user):
        raise SelfsameError(f"{user}: is not enrolled in {desk.device.vault.folder}")


def _record(trial: Trial, verdict: Verdict, score: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"user": trial[0], "sample": trial[1], "accepted": verdict.accepted}
    if score:
        record |= {"score": verdict.score, "threshold": verdict.threshold, "llr": verdict.llr}
    return record


def _print(record: dict[str, Any], as_json: bool, as_csv: bool, single: bool) -> None:
    if as_json:
        print(json.dumps(record), flush=True)
    elif as_csv:
        _csv_line([str(value).lower() if isinstance(value, bool) else value for value in record.values()])
    else:
        word = "accepted" if record["accepted"] else "rejected"
        if "score" in record:
            word = f"score {record['score']:.4f}, threshold {record['threshold']:.4f}: {word}"
            word += "" if record["llr"] is None else f"; log-likelihood ratio {record['llr']:.2f}"
        print(word if single else f"{record['user']}: {record['sample']}: {word}", flush=True)


def _csv_line(cells: Sequence[object]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])


def identify(
    model: Model,
    samples: Annotated[list[Path], typer.Argument(help="Samples of one person, who may be none of the users.")],
    user: Annotated[
        list[str] | None,
        typer.Option("--user", help="Choose among these users; may be repeated.", show_default="all of this model"),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help="Take at most this share of strangers for any user.", show_default="the users' thresholds"),
    ] = None,
    as_json: AsJson = False,
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
    store: Store = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Say which of the users enrolled a person is, or that it is nobody: exit code 0, 1, or 2 if that cannot be told.

    Several samples decide together. A person who is nobody is a failed attempt at every user; one who is somebody is
    none at the others. All users must have the same passphrase, or be named.
    """
    import time

    from selfsame.device.attempts import Attempts
    from selfsame.device.identify import identified
    from selfsame.device.samples import read_samples

    device = device_of(model, store, asked_once(passphrase(passphrase_file)), path, trust_code)
    raw = read_samples(samples, device.model.card, resize)
    found = identified(device, Attempts(device.vault), raw, user or [], time.time(), fpr)
    if as_json:
        record = {"user": found.user, "accepted": found.user is not None, "users": found.users}
        print(json.dumps({**record, "strangers": found.strangers}))
    else:
        from selfsame.device.rules import percent

        strangers = "" if found.strangers is None else f"; strangers taken for one: {percent(found.strangers)} expected"
        print(f"{found.user or 'nobody'} (of {found.users} users{strangers})")
    if found.user is None:
        raise typer.Exit(1)


def users(store: Store = None) -> None:
    """List the users enrolled on this device."""
    from selfsame.device.vault import Vault

    found = Vault(store_folder(store)).users()
    if not found:
        print(f"{store_folder(store)}: nobody is enrolled")
        return
    table_of([(kept.user, kept.key, kept.digest[:12]) for kept in found], "user", "key", "model")
