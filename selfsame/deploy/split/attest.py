"""A device's check of the enclave's quote, before the first byte leaves. Whatever is not proved is refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selfsame.enclave import quote
from selfsame.errors import SelfsameError

_LONGEST = 1 << 16  # bytes of a quote
_STATUSES = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
)


@dataclass(frozen=True)
class Policy:
    """What a device accepts: measurements as `measurement` writes them, TCB statuses, and whether a simulated quote."""

    measurements: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset({"UpToDate"})
    allow_simulated: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(self.statuses - set(_STATUSES))
        if unknown:
            raise SelfsameError(f"TCB status {unknown[0]!r} cannot be accepted; choose from {', '.join(_STATUSES)}")

    def accepts(self, found: Attested) -> bool:
        """Whether what an enclave proved before is enough today."""
        if found.simulated:
            return self.allow_simulated
        return found.measurement in self.measurements and found.status in self.statuses


@dataclass(frozen=True)
class Attested:
    """What a quote proved."""

    kind: str  # sgx, tdx or simulated
    measurement: str
    status: str
    advisories: tuple[str, ...] = ()

    @staticmethod
    def remembered(found: Mapping[str, Any]) -> Attested:
        """What was written down as JSON."""
        return Attested(**{**found, "advisories": tuple(found["advisories"])})

    @property
    def simulated(self) -> bool:
        """Whether no hardware stands behind it."""
        return self.kind == "simulated"

    def __str__(self) -> str:
        """One line for a report."""
        if self.simulated:
            return "SIMULATED enclave: a plain process, whoever runs the server can read embeddings and gradients"
        named = f", advisories {', '.join(self.advisories)}" if self.advisories else ""
        return f"{self.kind.upper()} enclave {self.measurement}, TCB {self.status}{named}"


def check(raw: bytes, expected: bytes, policy: Policy, collateral: str | None, now: float | None = None) -> Attested:
    """What the quote proves about the enclave; SelfsameError unless it proves all that the policy asks.

    `expected` is the report data, `collateral` the JSON of certificates, revocation lists, TCB info and QE identity
    that Intel signed. `now` is the device's clock, in seconds since 1970.
    """
    data = quote.simulated_data(raw)
    if data is not None:
        if not policy.allow_simulated:
            raise SelfsameError("quote: simulated, no hardware protects this enclave; refused unless it is allowed")
        if data != expected:
            raise SelfsameError("quote: another key, nonce or training plan than this device's")
        return Attested("simulated", "simulated", "simulated")
    if collateral is None:
        raise SelfsameError("quote: collateral is needed to check it (a JSON file, see docs/design/enclave.md)")
    if len(raw) > _LONGEST:
        raise SelfsameError(f"quote: longer than {_LONGEST} bytes")
    qvl = _library()
    try:
        proof = qvl.QuoteCollateralV3.from_json(collateral)
        verified = qvl.verify(raw, proof, int(time.time() if now is None else now))
        parsed = qvl.parse_quote(raw)
    except Exception as error:
        raise SelfsameError(f"quote: not proved by its collateral ({error})") from error
    if verified.status not in policy.statuses:
        raise SelfsameError(f"quote: TCB status {verified.status}, accepted is {', '.join(sorted(policy.statuses))}")
    report = parsed.report
    if debuggable(parsed):
        raise SelfsameError("quote: the enclave runs in debug mode, its memory can be read")
    found = measurement(parsed)
    if found not in policy.measurements:
        raise SelfsameError(f"quote: measurement {found} is not on the list of {len(policy.measurements)} accepted")
    if bytes(report.report_data) != expected:
        raise SelfsameError("quote: another key, nonce or training plan than this device's")
    kind = "sgx" if parsed.is_sgx() else "tdx"
    return Attested(kind, found, verified.status, tuple(verified.advisory_ids))


def measurement(parsed: Any) -> str:
    """What the hardware measured, as an allow-list writes it.

    SGX: MRENCLAVE. TDX: SHA-384 over the initial memory (MRTD), the configuration and owner registers and RTMR 0 to 3,
    since MRTD alone says nothing of the kernel and the programs that run.
    """
    report = parsed.report
    if parsed.is_sgx():
        return f"sgx:{bytes(report.mr_enclave).hex()}"
    start = (report.mr_td, report.mr_config_id, report.mr_owner, report.mr_owner_config)
    later = (report.rt_mr0, report.rt_mr1, report.rt_mr2, report.rt_mr3)
    return f"tdx:{hashlib.sha384(b''.join(map(bytes, start + later))).hexdigest()}"


def debuggable(parsed: Any) -> bool:
    """Whether the host may look inside: SGX attribute bit 1, or any of the TUD bits (0 to 7) of a TD's attributes."""
    if parsed.is_sgx():
        return bool(parsed.report.attributes[0] & 2)
    return bool(parsed.report.td_attributes[0])


def read_measurement(raw: bytes) -> str:
    """The measurement in a quote whose signature nobody has checked: for making an allow-list on the build machine."""
    try:
        return measurement(_library().parse_quote(raw))
    except ValueError as error:
        raise SelfsameError(f"quote: cannot be read ({error})") from error


def _library() -> Any:
    try:
        import dcap_qvl
    except ImportError as error:
        raise SelfsameError("checking a quote needs dcap-qvl: pip install 'selfsame[enclave]'") from error
    return dcap_qvl
