"""The page of what a server and its devices read."""

from __future__ import annotations

from reference.keys import KEY_HEADS, keys_of
from reference.markdown import page, prose, table
from selfsame.deploy import policy
from selfsame.deploy.flower import node_keys, terms


def deployment_page() -> str:
    nodes = [(f"`{name}`", what) for name, what in node_keys.DEVICE.items()]
    helpers = [(f"`{name}`", what) for name, what in node_keys.HELPER.items()]
    sections = [
        f"## deploy.toml\n\n{prose(terms.Serving)}\n\n" + table(KEY_HEADS, keys_of(terms.Serving)),
        f"## deploy.toml: `[samples]`\n\n{prose(terms.SampleForm)}\n\n" + table(KEY_HEADS, keys_of(terms.SampleForm)),
        "## Node configuration of a device\n\nGiven to `flower-supernode --node-config`.\n\n"
        + table(("key", "meaning"), nodes),
        "## Node configuration of a helper\n\n" + table(("key", "meaning"), helpers),
        f"## A device's policy\n\nA TOML file of the device's owner. {prose(policy.DevicePolicy)}\n\n"
        + table(KEY_HEADS, keys_of(policy.DevicePolicy)),
    ]
    return page(
        "Deployment", "What a server and its devices read. [The guide](../guides/deploy.md) has the steps.", *sections
    )
