"""Commands that read what a device keeps of its users: verify, users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.enrol import Model, PassphraseFile, Resize, Store, User, device_of, passphrase, store_folder
from selfsame.commands.options import TrustCode
from selfsame.commands.progress import table_of
from selfsame.errors import SelfsameError


def verify(
    model: Model,
    user: User,
    sample: Annotated[Path, typer.Argument(help="One sample: a PNG, JPEG, NPY, WAV or CSV file.")],
    score: Annotated[
        bool, typer.Option("--score", help="Print the score as well; the attempt then counts as a failed one.")
    ] = False,
    resize: Resize = False,
    trust_code: TrustCode = False,
    store: Store = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Say whether a sample is a user's: exit code 0 if it is, 1 if not, 2 if that cannot be told.

    After 5 failed attempts in a row each takes a longer wait, after 50 none is taken; enrolling anew or a new
    passphrase lifts that.
    """
    import time

    from selfsame.device.attempts import Attempts
    from selfsame.device.samples import read_samples

    device = device_of(model, store, passphrase(passphrase_file), trust_code)
    found = read_samples([sample], device.model.card, resize)
    if len(found) != 1:
        raise SelfsameError(f"{sample}: holds {len(found)} samples, one is verified at a time")
    attempts = Attempts(device.vault)
    attempts.begin(user, time.time())  # before anything is computed, so that an attempt that is broken off counts
    verdict = device.verify(user, found[0])
    if verdict.accepted and not score:  # as many scores as a template has numbers give the template away
        attempts.forget(user)
    word = "accepted" if verdict.accepted else "rejected"
    print(f"score {verdict.score:.4f}, threshold {verdict.threshold:.4f}: {word}" if score else word)
    if not verdict.accepted:
        raise typer.Exit(1)


def users(store: Store = None) -> None:
    """List the users enrolled on this device."""
    from selfsame.device.vault import Vault

    found = Vault(store_folder(store)).users()
    if not found:
        print(f"{store_folder(store)}: nobody is enrolled")
        return
    table_of([(kept.user, kept.key, kept.digest[:12]) for kept in found], "user", "key", "model")
