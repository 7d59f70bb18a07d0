"""An enclave that adds up, as deploy.toml and the nodes' configurations describe it: everything but the transport."""

from __future__ import annotations

import pytest
from enclave_loop import enclave_recipe

from selfsame.config.recipe import to_toml
from selfsame.deploy.flower.client_app import open_device
from selfsame.deploy.flower.keys import make_node, read_fingerprint
from selfsame.deploy.flower.terms import FILE, Serving, open_server
from selfsame.errors import SelfsameError
from selfsame.files import write


def configured(folder, count):
    """The configurations of so many nodes, by their names, with keys as `selfsame cluster keys` writes them."""
    found = {}
    for number in range(count):
        make_node(folder / "keys", f"node-{number}")
        key = folder / "keys" / f"node-{number}.pub"
        state = str(folder / f"state{number}")
        config = {
            "samples": f"digits:{number}",
            "state": state,
            "key": str(key),
            "simulated-enclave": True,
            "trial": True,
        }
        found[read_fingerprint(key)] = config
    return found


def test_a_folder_is_served_with_an_enclave(tmp_path):
    """The enclave is a process; every message finds a new device."""
    nodes = configured(tmp_path, 3)
    write(tmp_path / "recipe.toml", to_toml(enclave_recipe("fedaws", run={"rounds": 2, "precision": "float32"})))
    Serving(nodes=3, aggregation="enclave", register=str(tmp_path / "keys"), fewest=0).write(tmp_path / FILE)
    with open_server(tmp_path) as (server, _, expected):
        assert expected == 3
        server.begin(list(nodes), 0.0)
        for turn in range(40):
            for ask in server.step(float(turn)):
                server.answer(ask.node, open_device(nodes[ask.node]).reply(ask.payload), float(turn))
        assert [record["taken"] for record in server.records] == [3, 3]
        process = server._keeper.process
        assert process.alive
    assert not process.alive


def test_without_the_devices_keys_it_is_one_line(tmp_path):
    write(tmp_path / "recipe.toml", to_toml(enclave_recipe("fedaws")))
    Serving(nodes=3, aggregation="enclave", register=str(tmp_path / "none")).write(tmp_path / FILE)
    with pytest.raises(SelfsameError, match="public keys"), open_server(tmp_path):
        pass
