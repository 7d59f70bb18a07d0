"""Failed attempts are counted on the disk: first for nothing, then with waits, then no more."""

import pytest

from selfsame.device.attempts import FIRST_WAIT, FREE, LONGEST_WAIT, MOST, Attempts, wait
from selfsame.device.vault import ScryptWork, Vault
from selfsame.errors import SelfsameError


@pytest.fixture
def attempts(tmp_path):
    vault = Vault(tmp_path / "store", lambda: "a passphrase of many", ScryptWork(10, 1, 1))
    vault.write("ann", "0" * 64, b"text")
    vault.write("bob", "0" * 64, b"text")
    return Attempts(vault)


def fail(attempts, times, now=0.0, user="ann"):
    """So many failures, each as early as it may be; when the next one is allowed."""
    for number in range(times):
        attempts.begin(user, now)
        now += wait(number + 1)
    return now


def test_some_are_free_then_each_waits_twice_as_long(attempts):
    assert fail(attempts, FREE) == FIRST_WAIT
    for begun in (0.0, FIRST_WAIT - 1):
        with pytest.raises(SelfsameError, match=f"ann: {FREE} attempts in a row have failed; wait "):
            attempts.begin("ann", begun)
    attempts.begin("ann", FIRST_WAIT)
    assert [wait(n) for n in (0, FREE - 1, FREE, FREE + 1)] == [0, 0, FIRST_WAIT, 2 * FIRST_WAIT]
    assert wait(MOST) == LONGEST_WAIT
    attempts.begin("bob", 0.0)  # others are not held up


def test_a_success_begins_anew(attempts):
    fail(attempts, FREE - 1)
    attempts.forget("ann")
    assert fail(attempts, FREE) == FIRST_WAIT


def test_after_many_none_is_taken_however_long_one_waits(attempts):
    now = fail(attempts, MOST)
    for later in (now, now + 1e9):
        with pytest.raises(SelfsameError, match="no more are taken; the owner lifts that with `selfsame passphrase`"):
            attempts.begin("ann", later)
    attempts.forget("ann")
    attempts.begin("ann", now)


def test_the_count_is_on_the_disk_and_private(attempts):
    fail(attempts, FREE)
    again = Attempts(Vault(attempts.vault.folder))
    with pytest.raises(SelfsameError, match="wait"):
        again.begin("ann", 0.0)
    (file,) = attempts.vault.folder.glob("*.attempts")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{}", '{"failed": "x", "last": 0}', '{"failed": 1e999, "last": 0}', "[1]"])
def test_a_damaged_count_is_no_way_around_it(attempts, text):
    fail(attempts, 1)
    (file,) = attempts.vault.folder.glob("*.attempts")
    file.write_text(text)
    with pytest.raises(SelfsameError, match="no more are taken"):
        attempts.begin("ann", 0.0)


def test_a_clock_that_was_set_back_locks_nobody_out(attempts):
    fail(attempts, FREE, now=1e9)
    attempts.begin("ann", 0.0)


def test_who_is_not_enrolled_leaves_no_file(attempts):
    with pytest.raises(SelfsameError, match="eve: is not enrolled"):
        attempts.begin("eve", 0.0)
    assert not list(attempts.vault.folder.glob("*.attempts"))
