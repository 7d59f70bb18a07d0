"""Commands that change what a device keeps of its users: enrol, warm-up, passphrase, revoke."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import MovedTo, TrustCode
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.device.card import Raw
    from selfsame.device.embedder import Embedder
    from selfsame.device.strangers import Share
    from selfsame.device.verifier import Enrolled, Verifier

Model = Annotated[Path, typer.Argument(help="Model: an exported .onnx file, or the folder of a run.")]
User = Annotated[str, typer.Argument(help="The user's name on this device.")]
SAMPLE_FILES = "Pictures, NPY, WAV or CSV files, or folders of these."
Samples = Annotated[list[Path], typer.Argument(help=SAMPLE_FILES)]
MOST_FPR = 0.1
MostFpr = Annotated[
    float, typer.Option("--most-fpr", help="Refuse a threshold expected to let in a larger share of strangers.")
]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images that are not of the model's size.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the enrolments, for its owner alone.", show_default="~/.selfsame"),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File with the passphrase in its first line; without it SELFSAME_PASSPHRASE, or a prompt.",
    ),
]
InKeyring = Annotated[
    bool, typer.Option("--keyring", help="Keep a random key in the platform's keyring, in place of a passphrase.")
]

_VARIABLE = "SELFSAME_PASSPHRASE"


def enrol(
    model: Model,
    samples: Annotated[list[Path] | None, typer.Argument(help=SAMPLE_FILES)] = None,
    user: Annotated[str | None, typer.Option("--user", help="The user's name on this device.")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Enrol several: each folder named holds one user's samples, by their name.")
    ] = False,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="Threshold: tpr (FedUV's warm-up), bounded (with a guarantee), fpr (at most so many strangers), "
            "balanced (as many strangers in as owners out), paper (the same by --others; FDML) or fixed.",
            show_default="tpr",
        ),
    ] = None,
    tpr: Annotated[float, typer.Option(help="Share of the owner's attempts that must pass.")] = 0.9,
    confidence: Annotated[
        float, typer.Option(help="With bounded: how sure that is; with fpr: for which share of owners.")
    ] = 0.95,
    fpr: Annotated[float | None, typer.Option(help="With --rule fpr: share of strangers that may pass.")] = None,
    most_fpr: MostFpr = MOST_FPR,
    others: Annotated[
        list[Path] | None,
        typer.Option("--others", help="Samples of other people, to judge strangers by; may be repeated."),
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Take samples also where they do not look like one person's.")
    ] = False,
    warm_up: Annotated[
        int | None,
        typer.Option("--warm-up", help="How many samples, the last ones, set the threshold.", show_default="half"),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="A fixed threshold: no warm-up samples.")] = None,
    client: Annotated[
        str | None,
        typer.Option(
            help="Take the vector that this client of the run keeps, by number or name; all samples are warm-up."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="With --client: the run that the .onnx file was exported from.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the user's enrolment.")] = False,
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
    store: Store = None,
    keyring: InKeyring = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Enrol a user on this device: a template and a threshold, encrypted; no sample is kept.

    Printed with the threshold: the owner's samples expected to be refused and the strangers expected to be let in. A
    threshold that cannot work is refused, and so are samples that do not look like one person's.
    """
    from selfsame.device.attempts import Attempts
    from selfsame.device.rules import Rule
    from selfsame.device.samples import read_samples

    name = rule or ("fixed" if threshold is not None else "fpr" if fpr is not None else "tpr")
    chosen = Rule(name, tpr, confidence, threshold, fpr)
    if run is not None and client is None:
        raise SelfsameError("--run: names where the vector of --client comes from; say which client")
    asked = _who(user, each, client, samples or [])
    ask = None if keyring else asked_once(passphrase(passphrase_file, new=True))
    device = device_of(model, store, ask, path if run is None else None, trust_code)
    card = device.model.card
    known = read_samples(others, card, resize) if others else []
    prepared = []
    for one, paths in asked.items():
        device.vault.check_new(one, replace)
        try:
            raw = read_samples(paths, card, resize) if paths else []
            vector = None
            if client is not None:
                vector = _client_vector(run or model, client, device.model, raw, path, trust_code)
            made = device.prepare(
                raw, chosen, warm_up=warm_up, vector=vector, others=known, most_fpr=most_fpr, mixed=mixed
            )
        except SelfsameError as error:
            raise SelfsameError(f"{one}: {error}") if each else error from None
        prepared.append((one, *made))
    for one, done, enrolment in prepared:
        device.keep(one, enrolment, replacing=replace)
        Attempts(device.vault).forget(one)
        made_of = f"{done.template_samples} samples" if client is None else f"client {client}'s own vector"
        print(f"{one}: enrolled in {device.vault.folder}; template: {made_of}; {_told(done)}")


def _who(user: str | None, each: bool, client: str | None, paths: Sequence[Path]) -> dict[str, Sequence[Path]]:
    """Who is to be enrolled, from which files."""
    if not each:
        if user is None:
            raise SelfsameError("--user: say who is enrolled, or enrol a user of each folder with --each")
        return {user: paths}
    if user is not None or client is not None:
        raise SelfsameError("--each: users have the names of their folders; leave out --user and --client")
    found: dict[str, Sequence[Path]] = {}
    for path in paths:
        name = path.resolve().name
        if not path.is_dir():
            raise SelfsameError(f"{path}: with --each every user's samples are in a folder of their own")
        if name in found:
            raise SelfsameError(f"{path}: another folder has the name {name} too")
        found[name] = [path]
    if not found:
        raise SelfsameError("--each: name the users' folders")
    return found


def asked_once(ask: Callable[[], str]) -> Callable[[], str]:
    """Ask the first time alone."""
    answer: list[str] = []

    def again() -> str:
        if not answer:
            answer.append(ask())
        return answer[0]

    return again


def warm_up(
    model: Model,
    user: User,
    samples: Samples,
    most_fpr: MostFpr = MOST_FPR,
    resize: Resize = False,
    path: MovedTo = None,
    trust_code: TrustCode = False,
    store: Store = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Set a user's threshold anew from the warm-up samples so far and these; they must not have made the template."""
    from selfsame.device.samples import read_samples

    device = device_of(model, store, passphrase(passphrase_file), path, trust_code)
    now = device.add_warm_up(user, read_samples(samples, device.model.card, resize), most_fpr=most_fpr)
    print(f"{user}: {_told(now)}")


def change_passphrase(
    user: User,
    new_file: Annotated[
        Path | None, typer.Option("--new-passphrase-file", help="File with the new one.", show_default="a prompt")
    ] = None,
    keyring: InKeyring = False,
    store: Store = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Change the passphrase of a user's enrolment, or move its key into or out of the keyring."""
    from selfsame.device.attempts import Attempts
    from selfsame.device.vault import Vault

    if keyring and new_file is not None:
        raise SelfsameError("--keyring: takes no passphrase; leave out --new-passphrase-file")
    vault = Vault(store_folder(store), passphrase(passphrase_file))
    vault.rekey(user, None if keyring else passphrase(new_file, new=True, variable=None))
    Attempts(vault).forget(user)
    print(f"{user}: sealed anew")


def revoke(user: User, store: Store = None) -> None:
    """Destroy a user's enrolment; copies of it no longer open on this device."""
    from selfsame.device.attempts import Attempts
    from selfsame.device.vault import Vault

    vault = Vault(store_folder(store))
    vault.remove(user)
    Attempts(vault).forget(user)
    print(f"{user}: revoked")


def device_of(
    model: Path,
    store: Path | None,
    ask: Callable[[], str] | None,
    path: Path | None = None,
    trust_code: bool = False,
) -> Verifier:
    """The model that is named and the enrolments, whose passphrase `ask` gives; None: their keys are in the keyring."""
    from selfsame.device.vault import Vault
    from selfsame.device.verifier import Verifier
    from selfsame.export.opened import open_model

    return Verifier(open_model(model, trust_code=trust_code, data=path), Vault(store_folder(store), ask))


def store_folder(given: Path | None) -> Path:
    """The folder named, or the account's own."""
    return given if given is not None else Path.home() / ".selfsame"


def passphrase(file: Path | None, new: bool = False, variable: str | None = _VARIABLE) -> Callable[[], str]:
    """What asks for the passphrase when it is needed: a file, the environment, or a prompt (twice for a new one)."""

    def ask() -> str:
        if file is not None:
            return _first_line(file)
        if variable is not None and os.environ.get(variable):
            return os.environ[variable]
        if not sys.stdin.isatty():
            also = f", set {variable}" if variable else ""
            option = "--passphrase-file" if variable else "--new-passphrase-file"
            raise SelfsameError(f"passphrase: none given; use {option}{also} or run at a terminal")
        given = getpass.getpass("New passphrase: " if new else "Passphrase: ")
        if new and getpass.getpass("Again: ") != given:
            raise SelfsameError("passphrase: the two are not the same")
        return given

    return ask


def _first_line(file: Path) -> str:
    try:
        with open(file, encoding="utf-8") as stream:
            line = stream.readline(4096).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SelfsameError(f"{file}: the passphrase cannot be read ({type(error).__name__})") from error
    if not line:
        raise SelfsameError(f"{file}: expected a passphrase in its first line")
    return line


def _client_vector(
    run: Path, client: str, opened: Embedder, raw: Sequence[Raw], path: Path | None, trust_code: bool
) -> Raw:
    if run.is_file():
        raise SelfsameError(f"{run}: a model file keeps no client's vector; name the run with --run")
    from selfsame.export.from_run import client_vector

    return client_vector(run, client, opened, raw, trust_code, path)


def _told(done: Enrolled) -> str:
    """A threshold, what it promises, and what it is expected to do, a line each."""
    threshold, expected = done.threshold, done.expected
    origin = f"{threshold.rule}, {threshold.samples} other samples" if threshold.samples else threshold.rule
    note = f"; {threshold.note}" if threshold.note else ""
    refused = "not known: no warm-up samples" if expected.refused is None else _share(expected.refused, "95 % interval")
    strangers = f"not known: {expected.source}"
    if expected.let_in is not None:
        strangers = f"{_share(expected.let_in, 'from owner to owner')}, by {expected.source}"
    return (
        f"threshold {threshold.value:.4f} ({origin}){note}\n"
        f"  expected: the owner's samples refused {refused}\n"
        f"  expected: strangers' samples let in {strangers}"
        + "".join(f"\n  doubtful: {doubt}: are the samples all of one person?" for doubt in done.doubts)
    )


def _share(share: Share, what: str) -> str:
    from selfsame.device.rules import percent

    if share.value >= share.high:
        return f"at most {percent(share.high)}"
    return f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)}, {what})"
