"""Sealed files: what goes in comes out, whatever is changed does not open, and no write leaves half a file."""

import os
import random
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.device.vault import MAGIC, Header, ScryptWork, Vault, check_user, derive, seal, unseal
from selfsame.errors import SelfsameError
from selfsame.files import write

pytest.importorskip("cryptography")

CHEAP = ScryptWork(log_n=10, r=1, p=1)
MODEL, OTHER = "ab" * 32, "cd" * 32
POSIX = pytest.mark.skipif(os.name != "posix", reason="permission bits")
SHUT = "cannot be opened: wrong passphrase or damaged file"


def header(work=CHEAP, digest=MODEL):
    return Header(work, bytes(range(16)), bytes(range(16, 32)), bytes(12), digest)


@pytest.fixture
def vault(tmp_path):
    return Vault(tmp_path / "store", lambda: "open, sesame, now", CHEAP)


def with_passphrase(vault, text):
    return Vault(vault.folder, lambda: text, CHEAP)


class Ring:
    """A platform's keyring in a dictionary."""

    def __init__(self):
        self.kept = {}

    def set_password(self, service, name, value):
        self.kept[service, name] = value

    def get_password(self, service, name):
        return self.kept.get((service, name))

    def delete_password(self, service, name):
        del self.kept[service, name]


@pytest.fixture
def ring(monkeypatch):
    keyring = pytest.importorskip("keyring")
    found = Ring()
    for name in ("set_password", "get_password", "delete_password"):
        monkeypatch.setattr(keyring, name, getattr(found, name))
    return found


# ---- sealing

names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=15)
keys = st.binary(min_size=32, max_size=32)


@given(plain=st.binary(max_size=300), key=keys, user=names)
def test_what_is_sealed_comes_out(plain, key, user):
    file = seal(plain, key, user, header())
    assert unseal(file, key, user) == plain
    assert Header.of(file) == header()
    assert len(file) == len(header().to_bytes()) + len(plain) + 16


@given(plain=st.binary(max_size=100), key=keys, place=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_no_changed_byte_opens(plain, key, place, mask):
    file = bytearray(seal(plain, key, "ann", header()))
    file[place % len(file)] ^= mask
    assert unseal(bytes(file), key, "ann") is None


@given(plain=st.binary(max_size=50), key=keys, other_key=keys, user=names, other=names)
def test_another_user_model_or_key_does_not_open(plain, key, other_key, user, other):
    file = seal(plain, key, user, header())
    assert (unseal(file, key, other) is None) == (other != user)
    assert (unseal(file, other_key, user) is None) == (other_key != key)
    moved = header(digest=OTHER).to_bytes() + file[len(header().to_bytes()) :]
    assert Header.of(moved).digest == OTHER
    assert unseal(moved, key, user) is None


@given(junk=st.binary(max_size=400))
def test_junk_is_no_file(junk):
    assert Header.of(junk) is None
    assert unseal(junk, bytes(32), "ann") is None
    led = MAGIC + junk
    assert unseal(led, bytes(32), "ann") is None


def test_the_key_is_scrypt():
    import hashlib

    work = ScryptWork(log_n=11, r=2, p=3)
    want = hashlib.scrypt(b"caf\xc3\xa9", salt=bytes(range(16, 32)), n=2048, r=2, p=3, dklen=32)
    assert derive("café", header(work)) == want
    assert derive("cafe\u0301", header(work)) == want  # the other spelling of the same letters


@pytest.mark.parametrize(
    "work",
    [
        ScryptWork(9, 8, 1),
        ScryptWork(17, 0, 1),
        ScryptWork(17, 8, 0),
        ScryptWork(17, 8, 5),
        ScryptWork(19, 8, 1),
        ScryptWork(17, 17, 1),
        ScryptWork(255, 255, 255),
    ],
)
def test_a_header_cannot_ask_for_more_than_a_device_has(work):
    assert Header.of(header(work).to_bytes() + bytes(32)) is None
    assert Header.of(header().to_bytes() + bytes(32)) is not None


def test_the_default_work_is_what_is_said():
    assert ScryptWork().bearable
    assert 128 * ScryptWork().r * 2 ** ScryptWork().log_n == 128 * 2**20


# ---- a vault


def test_round_trip_and_listing(vault):
    assert vault.users() == []
    vault.write("ann", MODEL, b"of ann")
    vault.write("Ann", OTHER, b"of Ann")
    vault.write("../../zoé", MODEL, b"of zoe")
    assert vault.read("ann", MODEL) == b"of ann"
    assert vault.read("Ann") == b"of Ann"
    assert vault.read("../../zoe\u0301", MODEL) == b"of zoe"
    found = [(kept.user, kept.digest, kept.key) for kept in vault.users()]
    assert found == [("../../zoé", MODEL, "passphrase"), ("Ann", OTHER, "passphrase"), ("ann", MODEL, "passphrase")]
    assert {path.parent for path in vault.folder.rglob("*")} == {vault.folder}


@pytest.mark.parametrize("user", ["", " ann", "ann\n", "a\0b", "x" * 61, "é" * 31, "\udcff"])
def test_names_that_cannot_be(user):
    with pytest.raises(SelfsameError, match="user"):
        check_user(user)


def test_nobody_there(vault):
    for act in (lambda: vault.read("ann", MODEL), lambda: vault.remove("ann"), lambda: vault.rekey("ann", None)):
        with pytest.raises(SelfsameError, match="ann: is not enrolled in"):
            act()
    assert not vault.folder.exists()


def test_enrolled_twice(vault):
    vault.write("ann", MODEL, b"first")
    with pytest.raises(SelfsameError, match="--replace"):
        vault.write("ann", MODEL, b"second")
    assert vault.read("ann") == b"first"
    old = vault.path("ann").read_bytes()
    vault.write("ann", OTHER, b"second", replacing=True)
    assert vault.read("ann", OTHER) == b"second"
    write(vault.path("ann"), old, private=True)  # a copy of the replaced one does not come back
    with pytest.raises(SelfsameError, match="revoked"):
        vault.read("ann", MODEL)


def test_wrong_passphrase_and_damage_look_the_same(vault):
    vault.write("ann", MODEL, b"text")
    lines = set()
    with pytest.raises(SelfsameError) as fault:
        with_passphrase(vault, "wrong").read("ann", MODEL)
    lines.add(str(fault.value))
    good = vault.path("ann").read_bytes()
    for bad in (b"", good[:50], good[:-1], good + b"\0", b"x" + good[1:], good[:-1] + bytes([good[-1] ^ 1])):
        write(vault.path("ann"), bad, private=True)
        with pytest.raises(SelfsameError) as fault:
            vault.read("ann", MODEL)
        lines.add(str(fault.value))
    assert lines == {f"{vault.path('ann')}: {SHUT}"}


def test_swapped_files_are_refused(vault):
    vault.write("ann", MODEL, b"of ann")
    vault.write("bob", MODEL, b"of bob")
    ann, bob = vault.path("ann"), vault.path("bob")
    both = ann.read_bytes(), bob.read_bytes()
    write(bob, both[0], private=True)
    write(ann, both[1], private=True)
    for user in ("ann", "bob"):
        with pytest.raises(SelfsameError, match=SHUT):
            vault.read(user, MODEL)


def test_another_model_is_refused(vault):
    vault.write("ann", MODEL, b"text")
    with pytest.raises(SelfsameError, match="enrolled with another model"):
        vault.read("ann", OTHER)
    file = vault.path("ann").read_bytes()
    write(vault.path("ann"), file.replace(bytes.fromhex(MODEL), bytes.fromhex(OTHER)), private=True)
    with pytest.raises(SelfsameError, match=SHUT):
        vault.read("ann", OTHER)


def corrupted(file, chance):
    """The file with something done to it that changes it."""
    out = bytearray(file)
    kind = chance.randrange(5)
    place, length = chance.randrange(len(out)), chance.randint(1, 40)
    if kind == 0:
        out[place] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del out[place:]
    elif kind == 2:
        out[place:place] = chance.randbytes(length)
    elif kind == 3:
        out[place : place + length] = chance.randbytes(len(out[place : place + length]))
    else:
        other = chance.randrange(len(out))
        a, b = sorted((place, other))
        out = out[b:] + out[a:b] + out[:a]
    return bytes(out)


def test_a_thousand_corruptions(vault):
    vault.write("ann", MODEL, bytes(range(256)) * 2)
    path, good = vault.path("ann"), vault.path("ann").read_bytes()
    chance = random.Random(1)
    tried = 0
    while tried < 1000:
        bad = corrupted(good, chance)
        if bad == good:
            continue
        tried += 1
        path.write_bytes(bad)
        with pytest.raises(SelfsameError) as fault:  # anything else would be a traceback
            vault.read("ann", MODEL)
        assert "\n" not in str(fault.value)
    path.write_bytes(good)
    assert vault.read("ann", MODEL) == bytes(range(256)) * 2


def test_change_keeps_the_key_and_takes_a_new_nonce(vault):
    vault.write("ann", MODEL, b"one")
    before = Header.of(vault.path("ann").read_bytes())
    vault.change("ann", MODEL, lambda plain: plain + b" two")
    after = Header.of(vault.path("ann").read_bytes())
    assert vault.read("ann") == b"one two"
    assert (before.enrolment, before.salt, before.work) == (after.enrolment, after.salt, after.work)
    assert before.nonce != after.nonce


def test_another_passphrase(vault):
    vault.write("ann", MODEL, b"text")
    vault.rekey("ann", lambda: "another passphrase")
    assert with_passphrase(vault, "another passphrase").read("ann", MODEL) == b"text"
    with pytest.raises(SelfsameError, match=SHUT):
        vault.read("ann", MODEL)
    with pytest.raises(SelfsameError, match="expected 12 to"):
        with_passphrase(vault, "another passphrase").rekey("ann", lambda: "")


@pytest.mark.parametrize("text", ["", "x", "x" * 40, "abcdabcdabcd", "eleven char", "long enough" * 100])
def test_no_passphrase_is_no_passphrase(vault, text):
    with pytest.raises(SelfsameError, match="passphrase: expected"):
        with_passphrase(vault, text).write("ann", MODEL, b"text")
    assert vault.users() == []


# ---- revocation


def test_revoked_is_gone_and_stays_gone(vault):
    vault.write("ann", MODEL, b"text")
    path = vault.path("ann")
    copy = path.read_bytes()
    left = path.with_name(f".{path.name}.0123")  # of a write that was killed
    left.write_bytes(copy)
    vault.remove("ann")
    assert vault.users() == [] and not path.exists() and not left.exists()
    with pytest.raises(SelfsameError, match="not enrolled"):
        vault.read("ann", MODEL)
    write(path, copy, private=True)
    with pytest.raises(SelfsameError, match="revoked"):
        vault.read("ann", MODEL)
    vault.write("ann", MODEL, b"anew", replacing=True)
    assert vault.read("ann", MODEL) == b"anew"


def test_the_file_is_overwritten_before_it_goes(vault):
    vault.write("ann", MODEL, b"text")
    path = vault.path("ann")
    before = path.read_bytes()
    os.link(path, vault.folder / "second-name")
    vault.remove("ann")
    after = (vault.folder / "second-name").read_bytes()
    assert len(after) == len(before) and after != before
    assert Header.of(after) is None


def test_a_damaged_file_is_listed_and_can_be_revoked(vault):
    vault.write("ann", MODEL, b"text")
    write(vault.path("ann"), b"junk", private=True)
    assert [(kept.user, kept.key) for kept in vault.users()] == [("ann", "damaged")]
    vault.remove("ann")
    assert vault.users() == []


# ---- files


@POSIX
def test_only_the_owner_may_read(vault):
    before = os.umask(0)
    try:
        vault.write("ann", MODEL, b"text")
        vault.remove("ann")
        vault.write("ann", MODEL, b"text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(vault.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in vault.folder.iterdir()} == {0o600}


@POSIX
@pytest.mark.parametrize("mode", [0o710, 0o704, 0o750, 0o777])
def test_a_store_for_others_is_refused(vault, mode):
    vault.write("ann", MODEL, b"text")
    vault.folder.chmod(mode)
    acts = (vault.users, lambda: vault.read("ann"), lambda: vault.write("bob", MODEL, b""), lambda: vault.remove("ann"))
    for act in acts:
        with pytest.raises(SelfsameError, match=r"others may read or change it.*chmod 700"):
            act()
    vault.folder.chmod(0o700)
    vault.path("ann").chmod(0o640)
    with pytest.raises(SelfsameError, match=r"others may read or change it.*chmod 600"):
        vault.read("ann")
    vault.remove("ann")


@POSIX
def test_only_plain_files_are_opened(vault, tmp_path):
    vault.write("ann", MODEL, b"text")
    path = vault.path("ann")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SelfsameError, match="cannot be read"):
        vault.read("ann")
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(SelfsameError, match="expected a plain file"):
        vault.read("ann")
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(SelfsameError, match="expected a plain file"):
        vault.read("ann")


def test_a_store_that_is_a_file(vault):
    vault.folder.write_text("x")
    with pytest.raises(SelfsameError, match="expected a folder"):
        vault.write("ann", MODEL, b"text")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(vault, monkeypatch, step):
    vault.write("ann", MODEL, b"old")
    before = sorted(vault.folder.iterdir())

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        for act in (
            lambda: vault.change("ann", MODEL, lambda plain: b"new"),
            lambda: vault.rekey("ann", lambda: "other passphrase"),
            lambda: vault.write("ann", MODEL, b"new", replacing=True),
        ):
            with pytest.raises(OSError, match="No space"):
                act()
    assert vault.read("ann", MODEL) == b"old"
    assert sorted(vault.folder.iterdir()) == before


@POSIX
def test_a_killed_write_leaves_the_old_file(vault):
    vault.write("ann", MODEL, b"old")
    code = (
        "import os, signal, sys; from pathlib import Path; from selfsame.device import vault as v\n"
        "os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store = v.Vault(Path(sys.argv[1]), lambda: 'open, sesame, now', v.ScryptWork(10, 1, 1))\n"
        f"store.change('ann', '{MODEL}', lambda plain: b'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(vault.folder)], capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr
    assert len(list(vault.folder.iterdir())) == 2  # what was being written is there, under another name
    assert vault.read("ann", MODEL) == b"old"
    assert [kept.user for kept in vault.users()] == ["ann"]
    vault.remove("ann")
    assert [path.name for path in vault.folder.iterdir()] == ["revoked"]


def test_too_large_a_file_is_not_read(vault):
    vault.write("ann", MODEL, b"text")
    with open(vault.path("ann"), "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(SelfsameError, match=SHUT):
        vault.read("ann", MODEL)
    vault.remove("ann")


# ---- the keyring


def test_keys_in_the_keyring(tmp_path, ring):
    vault = Vault(tmp_path / "store")
    vault.write("ann", MODEL, b"text")
    assert vault.read("ann", MODEL) == b"text"
    assert [kept.key for kept in vault.users()] == ["keyring"] and len(ring.kept) == 1
    vault.change("ann", MODEL, lambda plain: b"other")
    vault.write("bob", MODEL, b"of bob")
    assert len(ring.kept) == 2
    vault.remove("bob")
    assert len(ring.kept) == 1  # the key is gone with the enrolment
    vault.write("ann", MODEL, b"new", replacing=True)
    assert vault.read("ann", MODEL) == b"new" and len(ring.kept) == 1
    ring.kept.clear()
    with pytest.raises(SelfsameError, match=SHUT):
        vault.read("ann", MODEL)


def test_into_and_out_of_the_keyring(vault, ring):
    vault.write("ann", MODEL, b"text")
    vault.rekey("ann", None)
    assert Vault(vault.folder).read("ann", MODEL) == b"text" and len(ring.kept) == 1
    vault.rekey("ann", lambda: "again a passphrase")
    assert ring.kept == {}
    with pytest.raises(SelfsameError, match="takes a passphrase"):
        Vault(vault.folder).read("ann", MODEL)
    assert with_passphrase(vault, "again a passphrase").read("ann", MODEL) == b"text"


def test_a_keyring_that_keeps_nothing(tmp_path, ring, monkeypatch):
    monkeypatch.setattr("keyring.set_password", lambda *args: None)
    with pytest.raises(SelfsameError, match="does not keep what it is given"):
        Vault(tmp_path / "store").write("ann", MODEL, b"text")
    assert Vault(tmp_path / "store").users() == []


def test_a_machine_without_a_keyring(tmp_path, monkeypatch):
    errors = pytest.importorskip("keyring.errors")

    def none(*args):
        raise errors.NoKeyringError("No recommended backend was\navailable")

    monkeypatch.setattr("keyring.set_password", none)
    with pytest.raises(SelfsameError, match="keyring: No recommended backend was available; use a passphrase"):
        Vault(tmp_path / "store").write("ann", MODEL, b"text")


@pytest.mark.parametrize("missing", ["cryptography", "keyring"])
def test_what_is_not_installed_is_named(tmp_path, ring, monkeypatch, missing):
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    extra = r"\[keyring\]" if missing == "keyring" else ""
    with pytest.raises(SelfsameError, match=rf'^this needs {missing}: pip install "selfsame{extra}"$'):
        Vault(tmp_path / "store").write("ann", MODEL, b"text")


@settings(max_examples=30)
@given(
    user=names,
    plain=st.binary(max_size=200),
    passphrase=st.text(min_size=12, max_size=40).filter(lambda text: len(set(text)) >= 5),
)
def test_any_user_text_and_passphrase(tmp_path_factory, user, plain, passphrase):
    vault = Vault(tmp_path_factory.mktemp("v") / "store", lambda: passphrase, CHEAP)
    vault.write(user, MODEL, plain)
    assert vault.read(user, MODEL) == plain
