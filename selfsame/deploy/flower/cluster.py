"""A federation on loopback: a SuperLink and SuperNodes with TLS and authentication, started, watched and taken down.

It starts Flower's own commands, the ones that several hosts use, and no others. Everything it writes is in one folder.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from selfsame.deploy.flower import keys
from selfsame.deploy.flower.bundle import write_bundle
from selfsame.deploy.flower.guard import write_guard
from selfsame.errors import SelfsameError
from selfsame.files import opened, parse_json, private_folder

HOST = "127.0.0.1"
CONNECTION = "cluster"
MISSING = "Flower is not installed: pip install 'selfsame[deploy]'"
_MARK = "SELFSAME_CLUSTER"
_AGAIN = 10.0  # seconds between two starts of a SuperNode
_START = 120.0  # seconds until a server must answer

# Flower's processes end with their parent only where that parent ends tidily; the kernel ends these in any case.
_TIED = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except (AttributeError, OSError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


REGISTER = "register"  # the devices' public keys, as a helper or an enclave is given them


def helper_names(count: int) -> list[str]:
    return [f"helper-{number}" for number in range(count)]


def tool(name: str) -> str:
    """Where a command of Flower's is: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise SelfsameError(MISSING)
    return found


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class Node:
    """A SuperNode: its name, what stands in its configuration, its process, and what that has in its environment."""

    name: str
    config: dict[str, str | bool]
    port: int
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    wanted: bool = False  # whether it is to be started again where it ends
    started: float = 0.0


class Cluster:
    """Used with `with`: everything is down again at the end, whatever happened."""

    def __init__(
        self, folder: Path, samples: Sequence[str], extra: Mapping[str, str | bool] | None = None, helpers: int = 0
    ) -> None:
        """`samples` has one entry per device: its folder, or digits:K. `helpers`: how many nodes take masks off.

        `extra` is added to every device's configuration.
        """
        tool("flower-superlink")
        self.folder = private_folder(folder.resolve(), close=True)
        self.keys = self.folder / "keys"
        self.mark = f"{os.getpid()}-{os.urandom(8).hex()}"
        self.superlink: subprocess.Popen[bytes] | None = None
        self.port, *ports = free_ports(1 + len(samples) + helpers)
        self.entry = self.port  # where nodes connect: the SuperLink itself, or a proxy before it
        if not self.keys.is_dir():
            keys.make_server(self.keys, [HOST, "localhost"])
        self.nodes: list[Node] = []
        register = private_folder(self.folder / REGISTER, close=True)
        for number, (place, port) in enumerate(zip(samples, ports, strict=False)):
            name = f"node-{number}"
            if not (self.keys / f"{name}.pub").is_file():
                keys.make_node(self.keys, name)
            config: dict[str, str | bool] = {
                "samples": place,
                "state": str(self.folder / "nodes" / name / "state"),
                "key": str(self.keys / f"{name}.pub"),
                **(extra or {}),
            }
            self.nodes.append(Node(name, config, port))
            shutil.copyfile(self.keys / f"{name}.pub", register / f"{name}.pub")
        for name, port in zip(helper_names(helpers), ports[len(samples) :], strict=True):
            if not (self.keys / f"{name}.helper").is_file():
                keys.make_helper(self.keys, name)
            self.nodes.append(Node(name, {
                "helper": str(self.keys / f"{name}.seal"),
                "devices": str(register),
                "state": str(self.folder / "nodes" / name / "state"),
                "key": str(self.keys / f"{name}.pub"),
            }, port))  # fmt: skip
        self.app = write_bundle(self.folder)
        self.guard = write_guard(self.folder / "guard")
        self._configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    # What runs

    def start(self) -> None:
        """SuperLink, registered keys, SuperNodes."""
        self.start_superlink()
        self.register([self.keys / f"{node.name}.pub" for node in self.nodes])
        for node in self.nodes:
            self.start_node(node)

    def start_superlink(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, again with its database, and wait until it answers."""
        self.superlink = self._start("superlink", [
            tool("flower-superlink"), "--host", HOST, "--port", str(self.port), "--enable-supernode-auth",
            "--ssl-ca-certfile", str(self.keys / "ca.pem"), "--ssl-certfile", str(self.keys / "server.pem"),
            "--ssl-keyfile", str(self.keys / "server.key"), "--disable-runtime-dependency-installation",
            "--database", str(self.folder / "superlink" / "state.db"),
        ], environment)  # fmt: skip
        until = time.monotonic() + _START
        while not self.healthy():
            if not self.linked or time.monotonic() > until:
                raise SelfsameError(f"the SuperLink did not start; see {self.log('superlink')}")
            time.sleep(0.1)

    @property
    def linked(self) -> bool:
        """Whether the SuperLink's process runs."""
        return self.superlink is not None and self.superlink.poll() is None

    def healthy(self) -> bool:
        """Whether the SuperLink answers, over TLS and with the certificate of this federation."""
        trust = ssl.create_default_context(cafile=str(self.keys / "ca.pem"))
        line = http.client.HTTPSConnection(HOST, self.port, timeout=2, context=trust)
        try:
            line.request("GET", "/health")
            return line.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            line.close()

    def register(self, public: Sequence[Path]) -> None:
        """`flwr supernode register` for each, side by side: each is a process of some seconds."""
        calls = [
            self._flwr("supernode", "register", str(path), CONNECTION, "--name", path.stem, "--format", "json")
            for path in public
        ]
        for path, call in zip(public, calls, strict=True):
            out, _ = call.communicate()
            known = b"already in use" in out  # the SuperLink's database is of an earlier start
            if not known and (call.returncode != 0 or not _json(out).get("success")):
                raise SelfsameError(f"{path.name}: the SuperLink did not register it: {_last(out)}")

    def start_node(self, node: Node, trust: Path | None = None, key: Path | None = None) -> None:
        """Start or restart one SuperNode."""
        node.wanted, node.started = True, time.monotonic()
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in node.config.items())
        node.process = self._start(node.name, [
            tool("flower-supernode"), "--superlink", f"{HOST}:{self.entry}",
            "--root-certificates", str(trust or self.keys / "ca.pem"),
            "--auth-supernode-private-key", str(key or self.keys / f"{node.name}.key"),
            "--host", HOST, "--port", str(node.port), "--node-config", config,
        ], node.environment)  # fmt: skip

    def tend(self) -> None:
        """Start SuperNodes again that have ended, as a device's system would.

        One that was killed is refused by the SuperLink, and ends, until the SuperLink has missed its signs of life for
        a minute.
        """
        for node in self.nodes:
            ended = node.process is not None and node.process.poll() is not None
            if node.wanted and ended and time.monotonic() > node.started + _AGAIN:
                self.start_node(node)

    def submit(self, app: Path | None = None, **config: str) -> str:
        """`flwr run`: start the ServerApp; the number of the run."""
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        given = ["--run-config", text] if text else []
        call = self._flwr("run", str(app or self.app), CONNECTION, "--format", "json", *given)
        out, _ = call.communicate()
        run = _json(out).get("run-id")
        if call.returncode != 0 or not run:
            raise SelfsameError(f"the SuperLink did not take the run: {_last(out)}")
        return str(run)

    # What ends

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        """SIGKILL, and no zombie left: Flower's other processes take one for alive."""
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Everything down: asked first, then killed, then looked for by the mark that every process carries."""
        running = [node.process for node in self.nodes] + [self.superlink]
        processes = [process for process in running if process is not None and process.poll() is None]
        for process in processes:
            process.terminate()
        until = time.monotonic() + 5
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            time.sleep(0.05)
        for process in processes:
            self.kill(process)
        until = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < until:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def processes(self, command: str = "", node: str = "") -> list[int]:
        """The processes of this cluster, those whose command line holds `command`, those of one SuperNode."""
        marks = [f"{_MARK}={self.mark}".encode()] + ([f"FLWR_HOME={self._home(node)}".encode()] if node else [])
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(place.name) == os.getpid() or place.joinpath("stat").read_text().rsplit(")")[1][1] == "Z":
                    continue
                environment = place.joinpath("environ").read_bytes().split(b"\0")
                words = place.joinpath("cmdline").read_bytes()
                if all(mark in environment for mark in marks) and command.encode() in words:
                    found.append(int(place.name))
        return found

    # How

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _home(self, name: str) -> Path:
        return self.folder / "homes" / name

    def _environment(self, name: str) -> dict[str, str]:
        given = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        beside = str(Path(tool("flower-superlink")).parent)
        path = os.pathsep.join([str(self.guard), beside, given.get("PATH", os.defpath)])
        own = {_MARK: self.mark, "FLWR_HOME": str(self._home(name)), "PATH": path, "NO_PROXY": HOST, "no_proxy": HOST}
        return {"OMP_NUM_THREADS": "1", **given, **SETTINGS, **own}

    def _start(
        self, name: str, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        self.log(name).parent.mkdir(exist_ok=True)
        self._home(name).mkdir(parents=True, exist_ok=True)
        (self.folder / "superlink").mkdir(exist_ok=True)
        tied = [sys.executable, "-c", _TIED, str(os.getpid()), *command]
        with opened(self.log(name)) as log:
            return subprocess.Popen(
                tied, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**self._environment(name), **(environment or {})},
                cwd=self.folder, start_new_session=True
            )  # fmt: skip

    def _flwr(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [tool("flwr"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self._environment("flwr"), cwd=self.folder
        )  # fmt: skip

    def _configure(self) -> None:
        """The connection by which `flwr` finds this SuperLink."""
        home = self._home("flwr")
        home.mkdir(parents=True, exist_ok=True)
        trust = json.dumps(str(self.keys / "ca.pem"))
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = {trust}\n',
            encoding="utf-8",
        )


def _json(out: bytes) -> dict[str, Any]:
    """The JSON object at the end of a command's output."""
    text = out.decode("utf-8", "replace")
    start = text.find("{")
    try:
        found = parse_json(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(out: bytes) -> str:
    """What a command said went wrong, in one line."""
    said = _json(out).get("error-message")
    lines = [line.strip() for line in str(said or out.decode("utf-8", "replace")).splitlines() if line.strip()]
    return " ".join(lines if said else lines[-1:])[:300] or "no answer"
