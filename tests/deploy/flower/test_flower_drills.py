"""Drills, each on real processes: what is killed, what lies, and what it costs. Minutes long: `pytest -m deploy`.

With SELFSAME_DRILLS=FILE every drill adds its line to a table there.
"""

import contextlib
import http.client
import http.server
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("fcntl")

from flower_harness import Drill, order

from selfsame.deploy.flower.bundle import TEXT
from selfsame.deploy.flower.cluster import CONNECTION, tool
from selfsame.deploy.flower.keys import make_node, make_server
from selfsame.files import read_records

pytestmark = pytest.mark.deploy
NODES = 4
WAIT = float(os.environ.get("SELFSAME_WAIT", "30"))  # a round's deadline: more on a busy machine
SLACK = 8.0  # seconds between a deadline and the moment at which the server looks


def tell(what, happened, records, state):
    """A line of the table."""
    place = os.environ.get("SELFSAME_DRILLS")
    if place:
        seconds = ", ".join(f"{record['seconds']:.0f}" for record in records) or "-"
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"| {what} | {happened} | {seconds} | {state} |\n")


def counted(records):
    """Everything that was counted, over all rounds."""
    total = {}
    for record in records:
        for name, number in record["counts"].items():
            total[name] = total.get(name, 0) + number
    return total


def in_time(drill, records, phases=1):
    assert all(record["seconds"] <= phases * drill.wait + SLACK for record in records), records


def taken(records):
    return [record["taken"] for record in records]


def fedhide(tmp_path, rounds=3, nodes=NODES, wait=WAIT, **serving):
    return Drill(tmp_path / "cluster", order("fedhide", nodes, rounds, neighbours=2), nodes, wait=wait, **serving)


def test_a_node_is_killed_while_it_waits(tmp_path):
    drill = fedhide(tmp_path)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.kill(1)

    records = drill.run(script)
    in_time(drill, records)
    assert taken(records) == [4, 3, 3]
    apart = drill.apart({1: [1], 2: [1]})
    assert apart <= 1e-6 and drill.kept(1).turn == 0
    tell(
        "SIGKILL of a node that waits",
        "the rounds go on with 3 of 4",
        records,
        "as left in round 1; equal to the simulator without it",
    )


def back_at(records):
    """The round in which everybody takes part again; it is the last one at the latest."""
    whole = [record["round"] for record in records[1:] if record["taken"] == NODES]
    assert whole and records[-1]["taken"] == NODES, taken(records)
    return f"it is back in round {whole[0]}"


def test_a_node_is_killed_at_work_and_restarted(tmp_path):
    drill = fedhide(tmp_path, rounds=5)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(lambda: drill.working(1))
        drill.kill(1)
        drill.cluster.start_node(drill.node(1))

    records = drill.run(script)
    in_time(drill, records)
    assert taken(records)[:2] == [4, 3]
    missing = {number: [1] for number, record in enumerate(records) if record["taken"] < NODES}
    assert drill.apart(missing) <= 1e-6
    happened = f"its round goes on with 3 of 4, {back_at(records)}"
    tell("SIGKILL of a node at work, restarted", happened, records, "equal to the simulator without these answers")


def test_a_node_is_killed_between_its_state_and_its_reply(tmp_path):
    drill = fedhide(tmp_path, rounds=5)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(lambda: drill.kept(1).turn == 1)
        drill.kill(1)
        drill.cluster.start_node(drill.node(1))

    records = drill.run(script)
    in_time(drill, records)
    assert taken(records)[:2] == [4, 3] and drill.kept(1).turn == 4
    happened = f"the reply is lost, its round goes on with 3 of 4, {back_at(records)}"
    what = "SIGKILL of a node after its state is written, before its reply; restarted"
    tell(what, happened, records, "each turn stands on its disk once")


def test_the_server_app_is_killed(tmp_path):
    drill = fedhide(tmp_path, wait=2 * WAIT)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(lambda: drill.working(1))
        assert drill.kill_server_app() == 1
        drill.killed = time.monotonic()

    records = drill.run(script)
    assert records[-1]["round"] == 3 and drill.apart() <= 1e-6
    tell(
        "SIGKILL of the ServerApp in round 2",
        "a new one goes on after round 1; devices answer round 2 again with the same bytes",
        records,
        "equal to the simulator, nothing missing",
    )


def test_the_superlink_is_killed(tmp_path):
    drill = fedhide(tmp_path, wait=2 * WAIT)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(lambda: drill.working(1))
        drill.cluster.kill(drill.cluster.superlink)

    records = drill.run(script)
    assert records[-1]["round"] == 3 and drill.apart() <= 1e-6
    tell(
        "SIGKILL of the SuperLink in round 2",
        "restarted on its database, the run is submitted again and goes on after round 1",
        records,
        "equal to the simulator, nothing missing",
    )


def test_nodes_that_lie(tmp_path):
    ways = ["nan", "shape", "fields", "replay", "zeros"]
    drill = fedhide(tmp_path, rounds=2, nodes=8, wait=3 * WAIT)
    for number, way in enumerate(ways, start=3):
        drill.hostile(number, way)
    records = drill.run()
    in_time(drill, records)
    total = counted(records)
    assert all(total[reason] >= 1 for reason in ("finite", "shape", "fields", "size", "round")), total
    assert taken(records) == [4, 3]
    assert drill.apart({0: [3, 4, 5, 7], 1: [3, 4, 5, 6, 7]}, [0, 1, 2]) <= 1e-6
    for what, reason in (
        ("NaN", "finite"), ("wrong shapes", "shape"), ("another method's fields", "fields"),
        ("last round's reply", "round"), ("100 MB of zeros", "size"),
    ):  # fmt: skip
        tell(f"a node answers {what}", f"refused, counted as {reason!r}", records, "equal to the simulator without it")


def test_a_key_that_nobody_registered(tmp_path):
    drill = fedhide(tmp_path, rounds=1, nodes=2)
    make_node(tmp_path / "other", "stranger")
    stranger = drill.node(1)
    with drill.cluster:
        drill.cluster.start_superlink()
        drill.cluster.register([drill.cluster.keys / "node-0.pub"])
        drill.cluster.start_node(stranger, key=tmp_path / "other" / "stranger.key")
        begun = time.monotonic()
        drill.spin(lambda: stranger.process.poll() is not None)
        seconds = time.monotonic() - begun
        log = drill.cluster.log(stranger.name).read_text(encoding="utf-8")
    assert stranger.process.returncode != 0 and "SuperNode ID" not in log
    tell(
        "a key that was not registered",
        f"the SuperLink refuses it, the SuperNode ends after {seconds:.0f} s",
        [],
        "nothing was sent",
    )


def test_a_wrong_trust_root(tmp_path):
    drill = fedhide(tmp_path, rounds=1, nodes=2)
    make_server(tmp_path / "other", ["127.0.0.1"])
    node = drill.node(0)
    with drill.cluster:
        drill.cluster.start_superlink()
        drill.cluster.register([drill.cluster.keys / "node-0.pub"])
        drill.cluster.start_node(node, trust=tmp_path / "other" / "ca.pem")
        time.sleep(15)
        ended = node.process.poll()
        log = drill.cluster.log(node.name).read_text(encoding="utf-8")
        seen = drill.cluster.log("superlink").read_text(encoding="utf-8")
    assert "SuperNode ID" not in log and "/v1/fleet" not in seen
    tell(
        "a wrong trust root",
        "no connection; " + ("the SuperNode ends" if ended is not None else "the SuperNode keeps trying"),
        [],
        "nothing was sent",
    )


def fdml(tmp_path, rounds=3):
    """Three of four nodes a round: all are asked for embeddings, and the first three go on to gradients."""
    recipe = order("fdml", NODES, rounds)
    recipe = replace(recipe, cohort=replace(recipe.cohort, size=3), split=replace(recipe.split, over=4 / 3))
    return Drill(tmp_path / "cluster", recipe, NODES, wait=WAIT, fewest=1)


@pytest.mark.parametrize("phase", ["embed", "derive"])
def test_a_node_is_killed_in_a_split_round(tmp_path, phase):
    drill = fdml(tmp_path)
    waiting, killed = set(), []

    def at_work():
        """A node in the phase of round 2: one that has embedded there, was done, and works again is in the second."""
        for number in range(NODES):
            turn, works = drill.kept(number).turn, drill.working(number)
            if phase == "derive" and turn == 2 and not works:
                waiting.add(number)
            if works and (number in waiting or (phase == "embed" and turn < 2)):
                killed.append(number)
                return True
        return False

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(at_work, 2 * WAIT)
        drill.kill(killed[0])
        drill.cluster.start_node(drill.node(killed[0]))

    records = drill.run(script, limit=600)
    in_time(drill, records, phases=2)
    assert counted(records)["complete"] == 3 and taken(records)[1] == (3 if phase == "embed" else 2)
    happened = f"the round goes on, with gradients of {taken(records)[1]}"
    what = f"FDML: SIGKILL of a node in its {phase} phase, restarted"
    tell(what, happened, records, "each turn stands on its disk once")


def test_the_enclave_is_killed(tmp_path):
    drill = fdml(tmp_path)

    def script(drill):
        while drill.watch.round < 1:
            yield
        drill.spin(lambda: drill.working(1), 90)
        (pid,) = drill.cluster.processes("selfsame.enclave")
        os.kill(pid, signal.SIGKILL)

    records = drill.run(script, limit=600)
    total = counted(records)
    assert total.get("enclave ended") == 1 and total.get("complete") == 2
    tell(
        "FDML: SIGKILL of the enclave in round 2",
        "the round is given up, devices attest the next one",
        records,
        "no turn twice",
    )


# ---- the fence


class Proxy(http.server.BaseHTTPRequestHandler):
    """Ends TLS and lets /v1/fleet/ through, as docs/guides/deploy.md has it for nginx."""

    protocol_version = "HTTP/1.1"
    upstream, trust = 0, ""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer, kind = 403, b"", "text/plain"
        if self.path.startswith("/v1/fleet/"):
            context = ssl.create_default_context(cafile=self.trust)
            line = http.client.HTTPSConnection("127.0.0.1", self.upstream, context=context, timeout=60)
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
            }
            line.request("POST", self.path, body, headers)
            reply = line.getresponse()
            status, answer, kind = reply.status, reply.read(), reply.getheader("Content-Type", "")
            line.close()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def proxied(cluster):
    handler = type("Before", (Proxy,), {"upstream": cluster.port, "trust": str(cluster.keys / "ca.pem")})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cluster.keys / "server.pem", cluster.keys / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def knock(cluster, port, path):
    """The status of a request by somebody who has nothing but ca.pem."""
    context = ssl.create_default_context(cafile=str(cluster.keys / "ca.pem"))
    line = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    line.request("POST", path, b"", {"Content-Type": "application/x-protobuf", "Accept": "application/x-protobuf"})
    status = line.getresponse().status
    line.close()
    return status


def test_nodes_need_nothing_but_the_fleet(tmp_path):
    drill = fedhide(tmp_path, rounds=1, nodes=2, wait=2 * WAIT)
    found = {}

    def script(drill):
        while drill.watch.round < 0 or not drill.watch.at_work():
            yield
        for name, port in (("open", drill.cluster.port), ("fenced", drill.cluster.entry)):
            for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/fleet/pull-messages"):
                found[name, path.split("/")[2]] = knock(drill.cluster, port, path)

    with proxied(drill.cluster) as port:
        drill.cluster.entry = port
        records = drill.run(script)
    assert taken(records) == [2] and drill.apart() <= 1e-6
    assert found["open", "control"] not in (401, 403) and found["open", "runtime"] not in (401, 403), found
    assert found["open", "fleet"] in (400, 401, 403, 415, 422), found
    assert found["fenced", "control"] == found["fenced", "runtime"] == 403, found
    tell(
        "nodes behind a proxy that lets /v1/fleet/ through",
        "the run goes on; control and runtime are refused there",
        records,
        "equal to the simulator",
    )


FOREIGN = """
import os, time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    open({place!r} + "/node-was-here", "w").close()
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    open({place!r} + "/server-was-here", "w").close()
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.3)
    left = list(grid.push_messages([Message(RecordDict(), node, "train") for node in nodes]))
    while not (replies := list(grid.pull_messages(left))):
        time.sleep(0.3)
    text = "error" if replies[0].has_error() else "answered"
    with open({place!r} + "/reply.new", "w") as file:
        file.write(text)
    os.rename({place!r} + "/reply.new", {place!r} + "/reply")
"""


@pytest.mark.parametrize("fenced", [False, True], ids=["node fenced", "all fenced"])
def test_an_app_that_somebody_else_submitted(tmp_path, fenced):
    drill = fedhide(tmp_path, rounds=1, nodes=2)
    place = tmp_path / "app" / "foreign-app"
    place.mkdir(parents=True)
    text = TEXT.replace("selfsame-app", "foreign-app").replace(
        "selfsame.deploy.flower.server_app:app", "foreign:server"
    )
    (place / "pyproject.toml").write_text(text.replace("selfsame.deploy.flower.client_app:app", "foreign:client"))
    (place / "foreign.py").write_text(FOREIGN.format(place=str(tmp_path)))
    cluster = drill.cluster
    with cluster:
        plain = {"PATH": os.pathsep.join([str(Path(tool("flwr")).parent), os.environ["PATH"]])}
        cluster.start_superlink(None if fenced else plain)
        cluster.register([cluster.keys / "node-0.pub"])
        cluster.start_node(cluster.nodes[0])
        cluster.submit(place)
        if fenced:
            drill.spin(lambda: b"failed" in cluster._flwr("list", CONNECTION, "--format", "json").communicate()[0], 120)
        else:
            drill.spin(lambda: (tmp_path / "reply").exists(), 120)
    assert not (tmp_path / "node-was-here").exists()
    assert (tmp_path / "server-was-here").exists() is not fenced
    if not fenced:
        assert (tmp_path / "reply").read_text() == "error"
        tell(
            "an app of somebody else is submitted; only the node is fenced",
            "the server's host runs it, the node does not",
            [],
            "nothing was read",
        )
    else:
        tell("an app of somebody else is submitted; all are fenced", "nobody runs it", [], "nothing was read")


# ---- the command


def left(folder):
    """The processes that belong to a cluster in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            dead = place.joinpath("stat").read_text().rsplit(")")[1][1] == "Z"
            if not dead and f"FLWR_HOME={folder}".encode() in place.joinpath("environ").read_bytes():
                found.append(int(place.name))
    return found


def wait_for(what, limit):
    end = time.monotonic() + limit
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_the_command_is_stopped_and_goes_on(tmp_path, name):
    folder, env = tmp_path / "c", {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "selfsame", "cluster"]
    options = ["--nodes", "2", "--rounds", "2", "--set", "neighbours=1", "--wait", str(2 * WAIT), "--out", str(folder)]
    running = subprocess.Popen(
        [*command, "up", *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip
    records = folder / "server" / "run" / "rounds.jsonl"
    wait_for(records.is_file, 240)
    assert len(left(folder)) >= 5
    running.send_signal(getattr(signal, name))
    _, said = running.communicate(timeout=60)
    assert running.returncode == (-signal.SIGKILL if name == "SIGKILL" else 130)
    assert name == "SIGKILL" or b"cluster resume" in said
    begun = time.monotonic()
    wait_for(lambda: not left(folder), 30)
    seconds = time.monotonic() - begun
    done = subprocess.run([*command, "resume", str(folder)], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert left(folder) == [] and len(read_records(records)) == 2
    happened = f"no process is left after {seconds:.0f} s; `cluster resume` goes on after round 1"
    tell(f"{name} to `selfsame cluster up`", happened, read_records(records), "found again by the key")
