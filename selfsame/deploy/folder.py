"""The folder of a run on real devices: who is which client, a journal of the rounds, the checkpoint, the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from selfsame.config.recipe import to_toml
from selfsame.data.federation import SAMPLES, written_samples
from selfsame.engine import checkpoint
from selfsame.engine.problem import Problem
from selfsame.engine.setup import keep_first
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import Record, append_record, read_json, read_records, write, write_json, write_records

NODES, ROUNDS, MODEL = "nodes.json", "rounds.jsonl", "model.safetensors"
FORMAT = "selfsame-server-1"
_SPLIT, _SPLIT_FORMAT = "server.json", "selfsame-split-server-1"  # as split rounds used to be kept: read, not written


@dataclass
class Seat:
    """A node's place in the run, for good."""

    client: int
    label: int  # its class
    samples: int
    owner: str


@dataclass(frozen=True)
class Saved:
    """What must be on the disk before a message depends on it."""

    format: str
    run: str
    plan: str  # the digest of the terms
    opened: int  # the last round of which requests were sent
    counts: dict[str, int]
    nodes: dict[str, Seat]
    taken: tuple[int, ...] = ()  # of split rounds: how often each client's embeddings were used
    groups: tuple[tuple[str, ...], ...] = ()  # who is always added up with whom
    poll_groups: tuple[tuple[str, ...], ...] = ()  # and in polls
    polled: int = -1  # the last round that a poll came before


class RunFolder:
    """A run's files. Whatever is read of them was written whole."""

    def __init__(self, path: Path) -> None:
        self.path, self.checkpoint = path, path / "checkpoint" / "state.safetensors"

    def begin(self, problem: Problem, raw: str) -> None:
        """Make the folder of a new run; one that holds anything else is left alone."""
        if self.path.is_dir() and any(self.path.iterdir()):
            raise SelfsameError(f"{self.path}: is there already and holds no run on devices; name another folder")
        write(self.path / "recipe.toml", to_toml(problem.recipe))
        keep_first(problem, self.path)
        write_json(self.path / SAMPLES, written_samples(problem.federation, raw))

    def saved(self) -> Saved | None:
        """What was saved last; None for a folder without a run."""
        path = next((self.path / name for name in (NODES, _SPLIT) if (self.path / name).exists()), None)
        if path is None:
            return None
        try:
            given = read_json(path)
            if path.name == _SPLIT and given["format"] == _SPLIT_FORMAT:  # it kept client numbers alone
                nodes = {node: asdict(Seat(client, client, 0, "")) for node, client in given["nodes"].items()}
                given |= {"format": FORMAT, "nodes": nodes}
            saved = read_fields(path.name, given, Saved)
            if saved.format == FORMAT:
                return saved
        except (SelfsameError, KeyError, TypeError, AttributeError):
            pass
        raise SelfsameError(f"{path}: damaged, or of another version; go on with that version, or name another folder")

    def save(self, saved: Saved) -> None:
        write_json(self.path / NODES, asdict(saved))

    def load(self, blank: Callable[[int], State]) -> State | None:
        """The state after the last complete round; `blank` makes one of so many clients. None before the first."""
        if not self.checkpoint.is_file():
            return None
        state = blank(checkpoint.peek(self.checkpoint)["present"])
        checkpoint.load_state(state, self.checkpoint)
        return state

    def complete(self, record: Record, state: State) -> None:
        """A round is over. Its line is written before the checkpoint, and dropped again where that never was."""
        append_record(self.path / ROUNDS, record)
        checkpoint.save_state(state, self.checkpoint)

    def records(self, rounds: int) -> list[Record]:
        """The lines of so many complete rounds, which are all that is left afterwards."""
        found = [record for record in read_records(self.path / ROUNDS) if record["round"] <= rounds]
        write_records(self.path / ROUNDS, found)
        return found

    def finish(self, problem: Problem, state: State) -> None:
        """The network alone, as the simulator's runs leave it: the last thing that is written."""
        checkpoint.save_model(problem, state.theta_P, self.path / MODEL)
