"""A helper: it takes the masks off a sum and never sees an update. Bytes in, bytes out, as a device.

It is a node that somebody else runs. It knows the devices that are registered, by files that it was given and not by
the server's word. What it has released is on its disk before an answer leaves, so that it answers once a round, also
after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from selfsame.deploy.aggregation.contribution import MASKED, RECORD, masked_fields
from selfsame.deploy.aggregation.signing import read_public
from selfsame.deploy.aggregation.sum_terms import SumTerms
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Message, Refused, Spec, as_tensor, decode, encode
from selfsame.enclave.ledger import Ledger, Rules
from selfsame.enclave.masks import masks_of
from selfsame.enclave.message import Denied
from selfsame.enclave.records import NODE, POLL, Record
from selfsame.enclave.release import Asked, mask_keys
from selfsame.errors import SelfsameError
from selfsame.files import locked, private_folder, read_json, read_private, write, write_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_MOST = 2**20  # members of a group, and so of everything in a request
_LOCK = "lock"


def to_unmask(run: str | None = None, round: int | None = None) -> Spec:
    """What a helper is asked."""
    fields = {
        "members": Field((-1, NODE), torch.uint8, most=_MOST),
        "records": Field((-1, RECORD), torch.uint8, most=_MOST),
    }
    return Spec("unmask", run, round, {"plan": str, "agreement": dict, "network": str}, fields)


def unmasked(terms: SumTerms, run: str, round: int) -> Spec:
    """What it answers."""
    return Spec("unmasked", run, round, {"plan": str}, {"masks": masked_fields(terms)[MASKED]})


BLAMED = Spec("blamed", meta={"reason": str, "nodes": list})  # or why not, and without whom it might


def request(asked: Asked, terms: Mapping[str, Json]) -> bytes:
    """A release, as a server asks for it."""
    meta = {"run": asked.run, "plan": asked.plan.hex(), "agreement": terms, "network": asked.network.hex()}
    members = b"".join(bytes.fromhex(name) for name in asked.members)
    records = b"".join(record.pack() for record in asked.records)
    fields = {"members": as_tensor(members).reshape(-1, NODE), "records": as_tensor(records).reshape(-1, RECORD)}
    return encode("unmask", asked.round, meta, fields)


@dataclass(frozen=True)
class Helper:
    """A helper's part in any number of runs. `devices`: a folder with the NAME.pub of every registered device.

    `private` is the key that seeds are sealed to. `least`: it helps no group that is smaller, whatever was agreed.
    """

    folder: Path
    private: X25519PrivateKey
    devices: Path
    least: int = 2

    def reply(self, payload: bytes) -> bytes:
        """The sum of the masks; or the reason why not, and then nothing is released."""
        round, run = 0, ""
        nodes: tuple[str, ...] = ()
        try:
            message = decode(payload, expected=to_unmask())
            round, run = message.round, message.run
            return self._release(message)
        except Denied as refusal:
            reason, nodes = refusal.reason, refusal.nodes
        except Refused as refusal:
            reason = refusal.reason
        return encode("blamed", round, {"run": run, "reason": reason, "nodes": list(nodes)}, {})

    def _release(self, message: Message) -> bytes:
        agreement = self._agreed(message)
        asked = _asked(message)
        polled = asked.network == POLL
        if polled and not agreement.polls:
            raise Refused("plan")
        terms = agreement.polls[0] if polled else agreement.sums
        path = self._path(agreement.run, polled)
        with locked(private_folder(self.folder) / _LOCK):
            ledger = self._ledger(path, agreement, terms)
            keys = mask_keys(asked, self._register(), self.private, ledger)
            write_json(path, {"plan": agreement.digest, "ledger": ledger.to_json()}, private=True)
        masks = masks_of(keys, terms.numbers, terms.bits)
        signed = torch.from_numpy(masks.view(masks.dtype.str.replace("u", "i")))
        meta = {"run": agreement.run, "plan": agreement.digest}
        return encode("unmasked", message.round, meta, {"masks": signed})

    def _agreed(self, message: Message) -> Agreement:
        """The terms that the devices signed, as far as they concern a helper."""
        try:
            agreement = Agreement.from_json(message.meta["agreement"])
        except (SelfsameError, ValueError, TypeError, KeyError, RuntimeError):
            raise Refused("plan") from None
        if agreement.digest != message.meta["plan"] or agreement.run != message.run:
            raise Refused("plan")
        own = self.private.public_key().public_bytes_raw()
        if agreement.sums.aggregation != "masked" or own not in {
            one.recipient for one in agreement.sums.helpers if not one.enclosed
        }:
            raise Refused("helper")
        if agreement.sums.group < self.least:
            raise Refused("group")
        return agreement

    def _ledger(self, path: Path, agreement: Agreement, sums: SumTerms) -> Ledger:
        rules = Rules(sums.group, sums.least, sums.stand_ins, agreement.recipe.run.rounds)
        if not path.exists():
            return Ledger(rules)
        try:
            kept = read_json(path)
            ledger = Ledger.from_json(kept["ledger"])
        except (SelfsameError, KeyError, TypeError, ValueError):
            raise Denied("internal") from None  # what is damaged may not be begun anew: it would release twice
        if kept["plan"] != agreement.digest or ledger.rules != rules:
            raise Refused("plan")
        return ledger

    def _register(self) -> dict[str, bytes]:
        return dict(read_public(path) for path in sorted(self.devices.glob("*.pub")))

    def _path(self, run: str, polled: bool) -> Path:
        if not run or not run.isalnum() or not run.isascii():
            raise Refused("run")
        return self.folder / (f"{run}.polls.json" if polled else f"{run}.json")


def _asked(message: Message) -> Asked:
    members = tuple(bytes(row.numpy()).hex() for row in message.fields["members"])
    records = tuple(Record.unpack(bytes(row.numpy())) for row in message.fields["records"])
    try:
        plan, network = bytes.fromhex(message.meta["plan"]), bytes.fromhex(message.meta["network"])
    except ValueError:
        raise Refused("meta") from None
    return Asked(message.run, plan, message.round, members, network, records)


# Keys


def make_keys(path: Path) -> bytes:
    """A new X25519 key in a private file; the public half."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if path.exists():
        raise SelfsameError(f"{path}: is there already; keys are never written over, name another folder")
    key = X25519PrivateKey.generate()
    write(path, key.private_bytes_raw().hex() + "\n", private=True)
    return key.public_key().public_bytes_raw()


def read_keys(path: Path) -> Any:
    """The private key that `make_keys` wrote."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        return X25519PrivateKey.from_private_bytes(bytes.fromhex(read_private(path).decode("ascii").strip()))
    except (OSError, ValueError) as error:
        raise SelfsameError(f"{path}: not a helper's key as `selfsame cluster keys --helper` writes it") from error
