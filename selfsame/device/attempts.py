"""Failed attempts at verification, counted on the disk: after some in a row each must wait, after many none is taken.

That slows down whoever holds the device and asks again and again. It does not stop who can delete files in its folder:
where no part of a device keeps a count that cannot be set back, nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfsame.device.vault import Vault
from selfsame.errors import SelfsameError
from selfsame.files import locked, parse_json, read_private, write_json

FREE = 5  # failures in a row without a wait
FIRST_WAIT, LONGEST_WAIT = 30.0, 3600.0  # seconds; each is twice the one before
MOST = 50  # failures in a row after which none is taken
_ENDING, _LOCK = ".attempts", "attempts.lock"


@dataclass(frozen=True)
class Attempts:
    """The counts of a vault's users, each in a private file beside the user's own."""

    vault: Vault

    def begin(self, user: str, now: float) -> tuple[int, float]:
        """Count an attempt as a failed one, or refuse it; `now` in seconds. `forget` follows where it succeeds.

        Gives the count as it was before: how many had failed, and when the last one began.
        """
        if not self.vault.holds(user):
            raise SelfsameError(f"{user}: is not enrolled in {self.vault.folder}")
        with locked(self.vault.folder / _LOCK):
            failed, last = self._read(user)
            if failed >= MOST:
                raise SelfsameError(
                    f"{user}: {failed} attempts in a row have failed, no more are taken; the owner lifts that with "
                    "`selfsame passphrase` or `selfsame enrol --replace`"
                )
            left = last + wait(failed) - now
            if 0 < left <= LONGEST_WAIT:  # a longer one was noted by a clock that has been set back since
                raise SelfsameError(f"{user}: {failed} attempts in a row have failed; wait {left:.0f} s")
            write_json(self._path(user), {"failed": failed + 1, "last": now}, private=True)
            return failed, last

    def take_back(self, user: str, before: tuple[int, float]) -> None:
        """Count the last attempt as none: it was another user's, or none was made. A count that went on stays."""
        failed, last = before
        with locked(self.vault.folder / _LOCK):
            if self._read(user)[0] != failed + 1:
                return
            if failed:
                write_json(self._path(user), {"failed": failed, "last": last}, private=True)
            else:
                self.forget(user)

    def forget(self, user: str) -> None:
        """Begin to count anew."""
        self._path(user).unlink(missing_ok=True)

    def _path(self, user: str) -> Path:
        return self.vault.path(user).with_suffix(_ENDING)

    def _read(self, user: str) -> tuple[int, float]:
        try:
            found = parse_json(read_private(self._path(user), 1 << 10))
            return int(found["failed"]), float(found["last"])
        except FileNotFoundError:
            return 0, 0.0
        except (ValueError, KeyError, TypeError, OverflowError):
            return MOST, 0.0  # a count that cannot be read is no way around it


def wait(failed: int) -> float:
    """Seconds until the next attempt after so many failures in a row."""
    return 0.0 if failed < FREE else min(FIRST_WAIT * 2.0 ** (failed - FREE), LONGEST_WAIT)
