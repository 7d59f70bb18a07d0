"""Flower's ClientApp: a message's bytes in, the device's bytes out.

What is private is found by the node's key, whose public half the node's configuration names; Flower's own memory of a
node is not used, for a reply may leave before that is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from selfsame.deploy.codec import Refused, glance
from selfsame.deploy.flower.envelope import unwrap, wrap
from selfsame.deploy.flower.keys import read_fingerprint
from selfsame.deploy.flower.node_keys import DEVICE, HELPER, NEEDED
from selfsame.deploy.policy import DevicePolicy
from selfsame.deploy.split.agreement import SplitAgreement
from selfsame.errors import SelfsameError
from selfsame.files import private_folder, read_text

app = ClientApp()


def train(message: Message, context: Context) -> Message:
    """Whatever is asked for; the device looks into the message itself."""
    payload = unwrap(message)
    if payload is None:
        raise SelfsameError("message: not one of selfsame's")
    config = context.node_config
    node = open_helper(config) if "helper" in config else open_device(config, is_split(payload))
    return Message(wrap(node.reply(payload)), reply_to=message)


app.train()(train)


def is_split(payload: bytes) -> bool:
    """Whether a message belongs to split rounds, by its kind or by the format of the terms that it offers.

    What is neither is refused by the device that gets it.
    """
    try:
        kind, _, said = glance(payload, len(payload))
    except Refused:
        return False
    terms = said.get("agreement")
    return kind in ("embed", "derive") or (type(terms) is dict and terms.get("format") == SplitAgreement.FORMAT)


def open_helper(config: Mapping[str, Any]) -> Any:
    """The helper that a node's configuration describes."""
    unknown, missing = sorted(set(config) - set(HELPER)), [name for name in NEEDED if not config.get(name)]
    if unknown or missing:
        raise SelfsameError(
            f"node configuration: a helper has {', '.join(HELPER)}; check {', '.join(unknown + missing)}"
        )
    from selfsame.deploy.aggregation.helper import Helper, read_keys

    folder = private_folder(Path(str(config["state"]))) / read_fingerprint(Path(str(config["key"])))
    devices = Path(str(config["devices"]))
    return Helper(folder, read_keys(Path(str(config["helper"]))), devices, int(config.get("least-group", 2)))


def open_device(config: Mapping[str, Any], split: bool = False) -> Any:
    """The device that a node's configuration describes, with the state that belongs to its key."""
    unknown = sorted(set(config) - set(DEVICE))
    if unknown:
        raise SelfsameError(f"node configuration: unknown {', '.join(unknown)}; it knows {', '.join(DEVICE)}")
    missing = [name for name in ("samples", "state", "key") if not config.get(name)]
    if missing:
        raise SelfsameError(f"node configuration: {', '.join(missing)} missing")
    from selfsame.methods import method_class

    folder = private_folder(Path(str(config["state"]))) / read_fingerprint(Path(str(config["key"])))
    common: dict[str, Any] = {
        "conditions": Path(str(config["conditions"])) if config.get("conditions") else None,
        "simulate": config.get("simulate", False) is True,
        "agreed": str(config["agreed"]) if config.get("agreed") else None,
        "trial": config.get("trial", False) is True,
        "rules": DevicePolicy.read(Path(str(config["policy"]))) if config.get("policy") else None,
    }
    for path in filter(None, str(config.get("methods", "")).split(",")):
        method_class(path)  # imported here, at the wish of who configured this device: servers cannot have it done
    from selfsame.deploy.split.attest import Policy

    rules = common["rules"] or DevicePolicy()
    statuses = frozenset(str(config["statuses"]).split(",") if config.get("statuses") else rules.statuses)
    named = str(config["measurements"]).split(",") if config.get("measurements") else rules.measurements
    simulated = config.get("simulated-enclave", rules.simulated) is True
    common["policy"] = Policy(frozenset(filter(None, named)), statuses, simulated)  # by default it trusts none
    common["collateral"] = read_text(Path(str(config["collateral"]))) if config.get("collateral") else None
    if not split:
        from selfsame.deploy.device import Device

        private = Path(str(config.get("private") or Path(str(config["key"])).with_suffix(".key")))
        signer = private if private.exists() else None
        start = Path(str(config["start"])) if config.get("start") else None
        owner = str(config.get("owner", ""))
        return Device(folder, str(config["samples"]), owner=owner, signer=signer, start=start, **common)
    from selfsame.deploy.split.device import SplitDevice

    return SplitDevice(folder, str(config["samples"]), **common)
