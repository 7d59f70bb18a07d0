"""The parts around Flower that need no running cluster: keys, terms, the fence, the loop, the command's errors."""

import importlib
import importlib.util
import io
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from selfsame.cli import app as cli
from selfsame.commands import cluster
from selfsame.config.recipe import from_mapping, to_toml
from selfsame.deploy.flower import bundle, terms
from selfsame.deploy.flower.guard import FENCED, REFUSED, check_bundle, fence, write_guard
from selfsame.deploy.flower.keys import make_node, make_server, read_fingerprint
from selfsame.deploy.flower.watch import Watch
from selfsame.deploy.folder import MODEL, ROUNDS
from selfsame.deploy.guest import open_samples
from selfsame.deploy.schedule import Decision, Registry, Round
from selfsame.errors import SelfsameError
from selfsame.files import locked

# ---- keys


def talk(folder, trust, name):
    """What a client that trusts `trust` says of a server with the keys of `folder` under this name."""
    ours, theirs = socket.socketpair()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")

    def serve():
        try:
            with server.wrap_socket(theirs, server_side=True) as line:
                line.send(b"hello")
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=str(trust))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        with client.wrap_socket(ours, server_hostname=name) as line:
            return line.recv(5)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        thread.join()


def test_certificates_hold_for_their_hosts_alone(tmp_path):
    pytest.importorskip("cryptography")
    make_server(tmp_path / "a", ["127.0.0.1", "link.example"])
    make_server(tmp_path / "b", ["127.0.0.1"])
    trust = tmp_path / "a" / "ca.pem"
    assert talk(tmp_path / "a", trust, "127.0.0.1") == b"hello"
    assert talk(tmp_path / "a", trust, "link.example") == b"hello"
    assert "mismatch" in talk(tmp_path / "a", trust, "other.example")
    assert "unable to get local issuer" in talk(tmp_path / "b", trust, "127.0.0.1")


def test_private_files_are_private_and_never_written_over(tmp_path):
    pytest.importorskip("cryptography")
    folder = tmp_path / "keys"
    make_server(folder, ["localhost"])
    make_node(folder, "phone-1")
    make_node(folder, "phone-2")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SelfsameError, match="never written over"):
        make_node(folder, "phone-1")
    with pytest.raises(SelfsameError, match="never written over"):
        make_server(folder, ["localhost"])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert read_fingerprint(folder / "phone-1.pub") != read_fingerprint(folder / "phone-2.pub")


@pytest.mark.parametrize("name", ["", "a/b", "..", "ca", "server", "a b", "a\n"])
def test_names_that_would_be_other_files(tmp_path, name):
    pytest.importorskip("cryptography")
    with pytest.raises(SelfsameError, match="device name"):
        make_node(tmp_path, name)


def test_bad_hosts_and_keys(tmp_path):
    pytest.importorskip("cryptography")
    with pytest.raises(SelfsameError, match="at least one host"):
        make_server(tmp_path / "a", [])
    with pytest.raises(SelfsameError, match="host"):
        make_server(tmp_path / "b", ["bücher"])
    (tmp_path / "x.pub").write_text("nonsense")
    with pytest.raises(SelfsameError, match="not a public key"):
        read_fingerprint(tmp_path / "x.pub")


# ---- terms


def test_terms_come_back(tmp_path):
    serving = terms.Serving(nodes=3, answer_wait=12.5, transport="half", seeded=True, enclave='run "a b"')
    serving.write(tmp_path / terms.FILE)
    assert terms.Serving.read(tmp_path / terms.FILE) == serving
    assert terms.Serving.read(tmp_path / "none.toml") == terms.Serving()
    known = terms.SampleForm((1, 28, 28), "uint8", 1000, 900, (0.13,), (0.31,))
    terms.Serving(samples=known).write(tmp_path / terms.FILE)
    assert terms.Serving.read(tmp_path / terms.FILE) == terms.Serving(samples=known)


@pytest.mark.parametrize(
    "text, said",
    [
        ("nodes = 'x'", "nodes: expected a whole number"),
        ("nose = 1", "nose: unknown option"),
        ("answer_wait = inf", "answer_wait: expected a finite number"),
        ("registration = nan", "registration: expected a finite number"),
        ("nodes =", "deploy.toml"),
        ("samples = 3", "samples: expected a table"),
        ("[samples]\nshape = [1]\nraw = 'uint8'\nclients = 4\nclasses = 4\nmean = [inf]", "mean: expected a list of"),
        ("[samples]\nraw = 'uint8'", "needs shape, clients, classes"),
        ("[samples]\nshape = 3", "expected a list of whole numbers"),
        ("[samples]\nshape = ['a']", "expected a list of whole numbers"),
        ("[samples]\nfolder = 'x'", "folder: unknown option"),
    ],
)
def test_bad_terms_are_one_line(tmp_path, text, said):
    (tmp_path / terms.FILE).write_text(text)
    with pytest.raises(SelfsameError, match=said) as caught:
        terms.Serving.read(tmp_path / terms.FILE)
    assert "\n" not in str(caught.value)


def test_a_server_without_samples(tmp_path):
    recipe = {"method": {"name": "fedhide"}, "data": {"name": "digits"}, "cohort": {"size": 3}, "run": {"rounds": 1}}
    (tmp_path / "recipe.toml").write_text(to_toml(from_mapping(recipe)))
    known = terms.SampleForm((1, 12, 12), "uint8", 5, 5)
    terms.Serving(nodes=3, answer_wait=7, samples=known).write(tmp_path / terms.FILE)
    with terms.open_server(tmp_path) as (server, patience, nodes):
        assert (patience, nodes, server.agreement.shape, server.agreement.clients) == (60.0, 3, (1, 12, 12), 5)


def test_a_round_asks_the_recipes_cohort_or_every_node():
    recipe = from_mapping({"method": {"name": "fedhide"}, "data": {"name": "digits"}, "cohort": {"size": 5}})
    assert terms.Serving(nodes=7).terms(recipe).required == 5
    recipe = from_mapping({"method": {"name": "fedhide"}, "data": {"name": "digits"}})
    assert terms.Serving(nodes=7).terms(recipe).required == 7


# ---- the fence


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, text in files.items():
            made.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return out.getvalue()


OURS = {"pyproject_dot_toml": bundle.TEXT, "_dot_info__CONTENT": "x"}


def test_the_fence_takes_our_bundle():
    check_bundle(zipped(**OURS))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        zipped(),
        zipped(**OURS, client_dot_py="import os"),
        zipped(**OURS, selfsame__deploy__flower__client_app_dot_py="import os"),
        zipped(_dot_info__CONTENT="x", pyproject_dot_toml=bundle.TEXT.replace("client_app:app", "client_app:train")),
        zipped(_dot_info__CONTENT="x", pyproject_dot_toml=bundle.TEXT.replace("selfsame.deploy", "os")),
        zipped(_dot_info__CONTENT="x", pyproject_dot_toml="= ="),
        zipped(_dot_info__CONTENT="x", pyproject_dot_toml="#" * (1 << 17)),
        zipped(_dot_info__CONTENT="x", pyproject_dot_toml=bundle.TEXT)[:-30],
    ],
)
def test_the_fence_refuses_everything_else(content):
    with pytest.raises(SelfsameError, match="refused"):
        check_bundle(content)


def test_nothing_is_installed_that_the_fence_refuses():
    installed = []

    class Runner:
        @staticmethod
        def install_from_fab(content, skip_prompt=False):
            installed.append(content)

    fence(Runner)
    Runner.install_from_fab(zipped(**OURS), skip_prompt=True)
    with pytest.raises(SelfsameError):
        Runner.install_from_fab(zipped(**OURS, client_dot_py=""), skip_prompt=True)
    assert installed == [zipped(**OURS)]


def test_a_bundle_whose_compressed_text_is_damaged():
    """zlib has an error of its own, which escaped."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("pyproject.toml", bundle.TEXT)
        packed.writestr(".info/CONTENT", "")
    whole = made.getvalue()
    start = whole.index(b"pyproject.toml") + len("pyproject.toml")
    changed = bytearray(whole)
    changed[start] = 0xFF  # of the compressed text: a block of a kind that there is not
    with pytest.raises(SelfsameError, match="app bundle: cannot be read"):
        check_bundle(bytes(changed))


def test_the_guard_writes_through_no_link(tmp_path):
    (tmp_path / "guard").mkdir()
    (tmp_path / "victim").write_text("whole")
    (tmp_path / "guard" / "flwr-clientapp").symlink_to(tmp_path / "victim")
    write_guard(tmp_path / "guard")
    assert (tmp_path / "victim").read_text() == "whole" and (tmp_path / "victim").stat().st_mode & 0o111 == 0


def test_the_guard_stands_for_every_command_that_runs_apps(tmp_path):
    write_guard(tmp_path / "guard")
    assert sorted(path.name for path in (tmp_path / "guard").iterdir()) == sorted((*FENCED, *REFUSED))
    done = subprocess.run([tmp_path / "guard" / "flwr-agentapp"], capture_output=True, text=True)
    assert done.returncode == 1 and "no other" in done.stderr
    constant = pytest.importorskip("flwr.supercore.constant")
    assert set(constant.TASK_TYPE_TO_COMMAND.values()) == {*FENCED, *REFUSED}


def test_the_fence_fits_flower(tmp_path):
    """The name that it replaces is the one that both runners call, and the bundle that Flower builds passes."""
    pytest.importorskip("flwr")
    from flwr.cli.build import build_fab_from_disk

    for place, run in (("supernode", "run_clientapp"), ("superlink", "run_serverapp")):
        module = importlib.import_module(f"flwr.{place}.runtime.{run}")
        assert "install_from_fab" in getattr(module, run).__code__.co_names
        assert "install_from_fab" in vars(module)
    check_bundle(build_fab_from_disk(bundle.write_bundle(tmp_path)))


# ---- the loop


@dataclass
class Ask:
    node: str
    payload: bytes


@dataclass
class FakeServer:
    """Asks every node once a round; a round is over when each has answered or is lost."""

    rounds: int = 2
    nodes: list = field(default_factory=list)
    told: list = field(default_factory=list)
    round: int = 0
    waiting: set | None = None

    @property
    def done(self):
        return self.round >= self.rounds

    def begin(self, nodes, now):
        self.nodes = nodes

    def step(self, now):
        if self.waiting is None:
            self.waiting = set(self.nodes)
            return [Ask(node, f"{self.round}".encode()) for node in self.nodes]
        if not self.waiting:
            self.waiting = None
            self.round += 1
        return []

    def answer(self, node, payload, now):
        self.told.append((node, payload))
        if payload == b"":
            self.waiting.discard(node)
            return "form"
        if payload.startswith(b"old"):
            return "round"
        self.waiting.discard(node)
        return "not needed" if payload.startswith(b"more") else None

    def lost(self, node, now):
        self.told.append((node, "lost"))
        self.waiting.discard(node)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


class FakeGrid:
    """Nodes answer after a second; one of them with an error, one with what is not ours, one never."""

    def __init__(self, clock, ways):
        from flwr.proto.node_pb2 import NodeInfo

        self.clock, self.ways, self.sent = clock, ways, {}
        self.nodes = [NodeInfo(node_id=n, public_key=f"key {n}".encode(), name=f"n{n}") for n in sorted(ways)][::-1]

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_run_id"] = 1
            self.sent[name] = (self.clock() + 1.0, message)
            names.append(name)
        return names

    def pull_messages(self, names):
        from flwr.app import Error, Message, RecordDict

        from selfsame.deploy.flower.envelope import unwrap, wrap

        for name in names:
            due, message = self.sent.get(name, (float("inf"), None))
            if self.clock() < due:
                continue
            way = self.ways[message.metadata.dst_node_id]
            if way == "never":
                continue
            del self.sent[name]
            content = {
                "error": Error(code=1, reason="it fell over"),
                "other": RecordDict(),
                "well": wrap(b"re " + unwrap(message)),
                "old": wrap(b"old"),
                "more": wrap(b"more"),
            }[way]
            yield Message(content, reply_to=message)


def loop_of(ways, **options):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    from selfsame.deploy.flower.server_app import Loop

    clock, server = Clock(), FakeServer()
    return Loop(FakeGrid(clock, ways), server, 10.0, options.get("expected", 0), clock, clock.pause), server


def test_the_loop_hands_on_what_comes_and_says_what_is_lost():
    pytest.importorskip("flwr")
    from selfsame.deploy.flower.keys import fingerprint

    loop, server = loop_of({1: "well", 2: "error", 3: "other", 4: "old", 5: "more"})
    loop.run()
    names = [fingerprint(f"key {number}".encode()) for number in (1, 2, 3, 4, 5)]
    assert server.nodes == names  # in the order of the names they were registered with
    assert (names[0], b"re 0") in server.told and (names[0], b"re 1") in server.told
    assert server.told.count((names[1], "lost")) == 2
    assert server.told.count((names[2], b"")) == 2 and (names[2], "lost") not in server.told
    assert server.told.count((names[3], "lost")) == 2  # its only reply was of another round
    assert (names[4], "lost") not in server.told  # it came too late to count, and is none the worse for it


def test_the_loop_waits_for_nobody():
    """What a server with deadlines sees of a silent node: nothing, and its clock goes on."""
    pytest.importorskip("flwr")
    loop, server = loop_of({1: "well", 2: "never"})
    for _ in range(60):
        loop.look()
        loop.push()
        loop.pull()
        loop.pause(1.0)
    assert loop.clock() >= 60 and server.round == 0 and loop._sent == {}  # what nobody answers is forgotten


def test_no_round_before_the_expected_nodes_are_there():
    pytest.importorskip("flwr")
    loop, server = loop_of({1: "well"}, expected=2)

    class Enough(Exception):
        pass

    def pause(seconds):
        loop.clock.pause(seconds)
        if loop.clock() > 5:
            raise Enough

    loop.pause = pause
    with pytest.raises(Enough):
        loop.run()
    assert server.waiting is None


def test_a_folder_has_one_server_app(tmp_path):
    pytest.importorskip("flwr")
    from selfsame.deploy.flower.server_app import main

    context = SimpleNamespace(run_config={"folder": str(tmp_path)})
    with locked(tmp_path / terms.LOCK), pytest.raises(SelfsameError, match="another ServerApp"):
        main(None, context)
    with pytest.raises(SelfsameError, match=r"recipe\.toml"):  # it comes further once the other has gone
        main(None, context)
    assert "recipe.toml" in (tmp_path / terms.TROUBLE).read_text()


# ---- who watches


def test_a_run_is_done_when_its_network_is_written(tmp_path):
    """A record is written before the checkpoint: the last one alone says nothing."""
    watch = Watch(SimpleNamespace(), tmp_path)
    assert (watch.round, watch.done, watch.records()) == (0, False, [])
    (tmp_path / terms.RUN).mkdir()
    (tmp_path / terms.RUN / ROUNDS).write_text(
        '{"round": 1, "taken": 2}\n{"round": 2, "taken": 3}\n[]\n{"round": 3, "ta'
    )
    assert (watch.round, watch.done) == (2, False)
    (tmp_path / terms.RUN / MODEL).touch()
    assert watch.done and not watch.at_work()
    with locked(tmp_path / terms.LOCK):
        assert watch.at_work()


# ---- a node's configuration


def test_a_node_says_what_is_missing_in_its_configuration(tmp_path):
    pytest.importorskip("flwr")
    from selfsame.deploy.flower.client_app import open_device

    make_node(tmp_path / "keys", "phone")
    config = {"samples": "digits:0", "state": str(tmp_path / "state"), "key": str(tmp_path / "keys" / "phone.pub")}
    name = read_fingerprint(tmp_path / "keys" / "phone.pub")
    assert open_device(config).keep.folder == tmp_path / "state" / name
    assert open_device(config, split=True).keep.folder == tmp_path / "state" / name
    for missing in config:
        with pytest.raises(SelfsameError, match=f"{missing} missing"):
            open_device({key: value for key, value in config.items() if key != missing})
    with pytest.raises(SelfsameError, match="unknown sample"):
        open_device({**config, "sample": "x"})


# ---- the command


def test_without_flower_the_command_says_what_to_install(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "flwr" else find(name, *rest))
    done = CliRunner().invoke(cli, ["cluster", "up", "--out", str(tmp_path / "x")])
    assert isinstance(done.exception, SelfsameError)
    assert str(done.exception) == "Flower is not installed: pip install 'selfsame[deploy]'"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--nodes", "1"], "--nodes 1: expected 2 to"),
        (["--nodes", "99"], "--nodes 99: expected 2 to 14"),
        (["--data", "lfw"], "lies in files"),
        (["--data", "imagefolder"], "say where with --path"),
        (["--data", "imagefolder", "--path", "nowhere"], "nowhere"),
        (["--method", "nosuch"], "unknown method"),
        (["--method", "deepsvdd"], "deepsvdd"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(tmp_path, words, said):
    pytest.importorskip("flwr")
    done = CliRunner().invoke(cli, ["cluster", "up", "--out", str(tmp_path / "x"), *words])
    assert isinstance(done.exception, SelfsameError) and said in str(done.exception)
    assert not (tmp_path / "x").exists()


def picture_folders(root, people=3, each=4):
    for person in range(people):
        (root / f"person {person}").mkdir(parents=True)
        for number in range(each):
            tone = np.random.default_rng([person, number]).integers(0, 255, (20, 24), np.uint8)
            Image.fromarray(tone).save(root / f"person {person}" / f"{number}.png")
    (root / "empty").mkdir()
    return root


def test_a_node_for_each_person_of_a_folder(monkeypatch, tmp_path):
    """Its own folder is all that a node reads; the server knows the form of pictures and sees none."""
    pytest.importorskip("flwr")
    seen = []
    monkeypatch.setattr(cluster, "_watch", lambda folder, recipe, serving, quiet: seen.append((recipe, serving)))
    people = picture_folders(tmp_path / "faces")
    out = tmp_path / "x"
    words = ["cluster", "up", "--data", "imagefolder", "--path", str(people), "--helpers", "0", "--out", str(out)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    recipe, serving = seen[0]
    assert serving.nodes == 3 and recipe.cohort.size == 3 and serving.samples.shape == (1, 20, 20)
    assert [place.name for place in cluster._people(recipe)] == ["person 0", "person 1", "person 2"]
    with terms.open_server(out / "server") as (server, _, nodes):
        assert nodes == 3 and server.problem.federation.empty and server.agreement.clients == 3
        source, count = open_samples(str(people / "person 1"), server.agreement)
        assert count == 4
        rows = source.rows(torch.tensor([0]), torch.arange(4)[None])[0]
        assert tuple(rows.shape) == (4, 1, 20, 20) and rows.dtype == torch.uint8
    more = CliRunner().invoke(cli, [*words[:-1], str(tmp_path / "y"), "--nodes", "4"])
    assert str(more.exception) == "--nodes 4: expected 2 to 3, the people with pictures in the folder"


def test_a_recipe_names_the_method(tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "r.toml").write_text('[method]\nname = "deepsvdd"\n[data]\nname = "digits"\n')
    done = CliRunner().invoke(
        cli, ["cluster", "up", "--recipe", str(tmp_path / "r.toml"), "--out", str(tmp_path / "x")]
    )
    assert str(done.exception).startswith("deepsvdd: trains on each device alone")


def test_keys_for_several_hosts(tmp_path):
    pytest.importorskip("cryptography")
    words = ["cluster", "keys", str(tmp_path / "k"), "--host", "link.example", "--node", "a", "--node", "b"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "k").iterdir()} == {
        "ca.pem", "ca.key", "server.pem", "server.key", "a.key", "a.pub", "b.key", "b.pub",
    }  # fmt: skip
    done = CliRunner().invoke(cli, [*words[:5], "--node", "c"])  # later, one more device
    assert done.exit_code == 0 and (tmp_path / "k" / "c.key").is_file()


def test_a_folder_that_is_no_cluster(tmp_path):
    pytest.importorskip("flwr")
    done = CliRunner().invoke(cli, ["cluster", "resume", str(tmp_path)])
    assert isinstance(done.exception, SelfsameError) and "not a cluster's folder" in str(done.exception)


def test_flower_is_imported_by_nobody_who_does_not_ask():
    code = "import sys, selfsame.cli, selfsame.deploy.flower.cluster; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0


def test_the_bundle_is_toml_without_underscores(tmp_path):
    import tomllib

    place = bundle.write_bundle(tmp_path)
    assert "_" not in place.name and [path.name for path in place.iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for reference in app["components"].values():
        module, name = reference.split(":")
        assert Path(*module.split(".")).name in ("server_app", "client_app") and name == "app"
    assert json.dumps(app)


def test_a_nodes_configuration_names_its_owners_policy(tmp_path):
    """Without one the safe defaults hold; a trial without one takes what comes."""
    from selfsame.deploy.flower.client_app import open_device
    from selfsame.deploy.policy import TRIAL, DevicePolicy

    make_node(tmp_path / "keys", "phone")
    config = {"samples": "digits:0", "state": str(tmp_path / "state"), "key": str(tmp_path / "keys" / "phone.pub")}
    assert open_device(config)._rules == DevicePolicy()
    assert open_device({**config, "trial": True})._rules == open_device({**config, "simulate": True})._rules == TRIAL
    (tmp_path / "policy.toml").write_text('participants = 30\nmeasurements = ["sgx:ab"]\n')
    own = {**config, "policy": str(tmp_path / "policy.toml")}
    assert open_device({**own, "trial": True})._rules.participants == 30
    split = open_device(own, split=True)
    assert split._rules.participants == 30 and split._policy.measurements == {"sgx:ab"}
    assert open_device({**own, "measurements": "sgx:cd"}, split=True)._policy.measurements == {"sgx:cd"}


# ---- one death among three


@pytest.mark.parametrize(
    ("name", "nodes", "fewest"), [("fedhide", 3, 1), ("fedhide", 2, 1), ("fdml", 3, 2), ("fdml", 2, 1)]
)
def test_a_round_of_three_goes_on_with_two(name, nodes, fewest):
    """It waited for all three before, and threw two good answers away; the paper's "more than two" is FDML's own."""
    recipe = from_mapping({"method": {"name": name}, "data": {"name": "digits"}})
    found = terms.Serving(nodes=nodes).terms(recipe)
    assert (found.required, found.fewest) == (nodes, fewest)
    assert terms.Serving(nodes=nodes, fewest=0).terms(recipe).fewest == 0
    asked = [str(number) for number in range(nodes)]
    registry = Registry(100.0)
    for number, node in enumerate(asked):
        registry.register(node, 0.0, number)
    one = Round(found, registry, 0, 0)
    one.open_answers(0.0)
    for node in asked[:2]:
        assert one.answers.take(node, 1.0)
    late = found.answer_wait + 1
    assert one.answers_decision(late) is (Decision.GO_ON if len(asked[:2]) > fewest else Decision.GIVE_UP)


def test_the_table_hides_no_good_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    record = {"round": 1, "seconds": 40.0, "asked": 3, "taken": 0, "counts": {"taken": 2, "silent": 1}}
    cluster._table([record, {**record, "round": 2, "taken": 2}], tmp_path, private=False)
    first, second = [line for line in capsys.readouterr().out.splitlines() if " 40.0 " in line]
    assert "2 answers were too few, silent 1" in first and "too few" not in second
