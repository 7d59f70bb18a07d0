"""The enclave as a process: the recording proof, hostile frames at its door, and what it imports."""

import io
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_small import OneNetwork, Recording, a_plan, joined, run_round, weights

from selfsame.enclave.__main__ import serve
from selfsame.enclave.message import Denied, read_frame, write_frame
from selfsame.errors import SelfsameError


def windows(array):
    """Every eight consecutive bytes of values, as float32 and as float64, in either byte order."""
    rows = np.atleast_2d(array)
    for row in rows:
        for kind, together in (("<f4", 2), (">f4", 2), ("<f8", 1), (">f8", 1)):
            values = row.astype(kind)
            for i in range(len(values) - together + 1):
                yield values[i : i + together].tobytes()


def test_the_controller_sees_no_embedding_no_derivative_and_no_gradient():
    plan = a_plan(privacy={"kind": "laplace", "drop": 0.0, "clip": 1.0, "scale": 1e-3})
    with Recording(plan) as controller:
        devices = joined(controller, 5)
        everything = [run_round(controller, devices, number, weights(number)) for number in (1, 2, 3)]
        seen = b"".join(controller.seen)
    patterns = {
        pattern
        for _, known in everything
        for mine in known
        for what in ("emb", "grad_emb", "grad")
        for pattern in windows(mine[what])
    }
    assert len(patterns) > 1000
    assert [pattern for pattern in patterns if pattern in seen] == []
    # The search finds what is there: the aggregates, which are the controller's, and a message that is not sealed.
    assert all(
        pattern in seen
        for aggregate_P, _ in everything
        for pattern in windows(aggregate_P)
        if pattern in aggregate_P.astype("<f4").tobytes()
    )
    unsealed = seen + everything[0][1][0]["emb"].astype("<f4").tobytes()
    assert any(pattern in unsealed for pattern in patterns)


def test_a_thousand_hostile_frames_at_the_door():
    rng = np.random.default_rng(0)
    with OneNetwork(a_plan()) as controller:
        devices = joined(controller, 3)
        controller.begin(1)
        refused = 0
        for _ in range(1000):
            frame = rng.bytes(int(rng.integers(0, 400)))
            try:
                controller._frame(b"\x05" + frame if rng.random() < 0.5 else b"\xff" + frame)
            except Denied:
                refused += 1
        assert refused == 1000
        assert sum(controller.counts()["refused"].values()) == 1000
        with pytest.raises(Denied, match="size"):
            controller._frame(bytes(2_000_000))  # longer than any frame of this plan: read past
        with pytest.raises(Denied, match="frame"):
            controller._frame(b"")
        for device in devices:
            assert controller.submit(device.embeddings(1, device.embed(weights()))) is None
        assert len(controller.derive(1)) == 3


def test_a_process_that_has_ended_is_one_line():
    controller = OneNetwork(a_plan())
    controller._process.kill()
    controller._process.wait()
    with pytest.raises(SelfsameError, match="ended"):
        controller.begin(1)
    controller.close()


def test_an_enclave_that_does_not_start_is_one_line():
    with pytest.raises(SelfsameError, match=r"did not start.*selfsame\[enclave\]"):
        OneNetwork(a_plan(), command=[sys.executable, "-c", "pass"])


def test_without_cryptography_a_device_says_what_to_install():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from selfsame import SelfsameError\n"
        "try:\n    import selfsame.deploy.split.participant\n"
        "except SelfsameError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "selfsame[enclave]" in done.stdout


@pytest.mark.parametrize("part", [{"loss": {"kind": "nosuch"}}, {"loss": {"nosuch": 1}}, {"privacy": {"kind": "x"}}])
def test_a_plan_the_enclave_cannot_run_is_one_line(part):
    with pytest.raises(SelfsameError, match="plan"):
        OneNetwork(a_plan(**part))


def test_it_imports_no_more_than_an_auditor_reads():
    """Of selfsame the enclave alone, of others numpy and cryptography."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import selfsame.enclave.__main__\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "ours = {name for name in sys.modules if name.startswith('selfsame.')}\n"
        "print(sorted(name for name in new if not name.startswith('_')))\n"
        "print([name for name in sorted(ours) if not name.startswith('selfsame.enclave')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    new, ours = done.stdout.splitlines()
    assert set(eval(new)) <= {"numpy", "cryptography", "selfsame", "cffi"}
    assert ours == "[]"


def test_nothing_printed_gets_among_the_frames():
    code = (
        "import selfsame.enclave.__main__ as m\n"
        "whole = m.serve\n"
        "def loud(source, sink):\n"
        "    print('a library talks', flush=True)\n"
        "    whole(source, sink)\n"
        "m.serve = loud\n"
        "m.main()"
    )
    sent = io.BytesIO()
    write_frame(sent, a_plan().canonical())
    done = subprocess.run([sys.executable, "-c", code], input=sent.getvalue(), capture_output=True, timeout=60)
    assert done.stdout == struct.pack("<I", 1) + b"\1"
    assert b"a library talks" in done.stderr


def served(data):
    """The answers of an enclave to a stream of bytes."""
    sink = io.BytesIO()
    serve(io.BytesIO(data), sink)
    sink.seek(0)
    answers = []
    while (answer := read_frame(sink, 1 << 20)) is not None:
        answers.append(answer)
    return answers


def framed(*bodies):
    stream = io.BytesIO()
    for body in bodies:
        write_frame(stream, body)
    return stream.getvalue()


def test_a_bad_plan_then_a_good_one():
    good = a_plan().canonical()
    assert served(framed(b"", b"{}", b"\xff" * 100, good, good)) == [b"\0plan"] * 3 + [b"\1", b"\0frame"]


def test_a_frame_that_is_too_long_is_read_past():
    good = a_plan().canonical()
    assert served(framed(bytes(1 << 17), good, bytes(1 << 17), b"\x08"))[:3] == [b"\0size", b"\1", b"\0size"]


@pytest.mark.parametrize("rest", [b"", b"\1", b"\1\0\0", b"\5\0\0\0abc", b"\xff\xff\xff\xff", b"\xff\xff\xff\xffabc"])
def test_a_stream_that_ends_anywhere_ends_quietly(rest):
    assert served(framed(a_plan().canonical()) + rest) == [b"\1"]


@given(st.binary(max_size=400))
def test_any_stream_ends(data):
    assert all(answer[:1] == b"\0" for answer in served(data))
    assert served(framed(a_plan().canonical()) + data)[0] == b"\1"


def test_the_program_on_the_enclaves_page_runs(capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "design" / "enclave.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, str(page), "exec"), {})
    assert capsys.readouterr().out.startswith("SIMULATED enclave")
