"""The device's check, on genuine quotes: it accepts what is proved and nothing else."""

import calendar
import datetime
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.deploy.split import attest
from selfsame.deploy.split.attest import Attested, Policy, check
from selfsame.deploy.split.participant import Participant
from selfsame.enclave import quote
from selfsame.enclave.mandate import Mandate
from selfsame.errors import SelfsameError

qvl = pytest.importorskip("dcap_qvl")

DATA = Path(__file__).parents[2] / "enclave" / "data"
SGX, TDX, OUTDATED = ((DATA / name).read_bytes() for name in ("sgx_quote", "tdx_quote", "tdx_quote_outdated"))
SGX_PROOF, TDX_PROOF, OUTDATED_PROOF = (
    (DATA / f"{name}_collateral.json").read_text() for name in ("sgx_quote", "tdx_quote", "tdx_quote_outdated")
)
MRENCLAVE = "sgx:33d8736db756ed4997e04ba358d27833188f1932ff7b1d156904d3f560452fbb"
HARDENING = "ConfigurationAndSWHardeningNeeded"
SGX_DATA = b"Hello, world!" + bytes(51)
TDX_DATA = bytes.fromhex(
    "9a9d48e7f6799642d3d1b34e1e5e1742d4bb02dd6ddd551862c1211d35c304f9"
    "eca3efdbb481601c163cf52493d6e44aed55d51ec39b7e518fadb92c2b523f20"
)
SGX_POLICY = Policy(frozenset({MRENCLAVE}), frozenset({"UpToDate", HARDENING}))


def on(date):
    return calendar.timegm(datetime.date.fromisoformat(date).timetuple())


INSIDE = on("2025-07-01")


def tdx_policy(**changes):
    return Policy(**({"measurements": frozenset({attest.read_measurement(TDX)})} | changes))


def sgx(raw=SGX, expected=SGX_DATA, policy=SGX_POLICY, collateral=SGX_PROOF, now=INSIDE):
    return check(raw, expected, policy, collateral, now)


def tdx(raw=TDX, expected=TDX_DATA, policy=None, collateral=TDX_PROOF, now=INSIDE):
    return check(raw, expected, policy or tdx_policy(), collateral, now)


def test_genuine_quotes_inside_their_time():
    got = sgx()
    assert got == Attested("sgx", MRENCLAVE, HARDENING, ("INTEL-SA-00289", "INTEL-SA-00615"))
    assert MRENCLAVE in str(got) and "INTEL-SA-00615" in str(got) and not got.simulated
    got = tdx()
    assert (got.kind, got.status, got.advisories) == ("tdx", "UpToDate", ())


@pytest.mark.parametrize("date", ["2025-06-18", "2025-07-20", "2020-01-01", "2035-01-01"])
@pytest.mark.parametrize("which", [sgx, tdx])
def test_outside_their_time(which, date):
    with pytest.raises(SelfsameError, match="not proved"):
        which(now=on(date))


def test_the_clock_is_todays_where_none_is_given():
    with pytest.raises(SelfsameError, match="not proved"):
        sgx(now=None)


@pytest.mark.parametrize(("which", "raw", "end"), [(sgx, SGX, 432), (tdx, TDX, 632)])
def test_a_flipped_byte_in_what_is_signed(which, raw, end):
    """Every byte of header and report: it is the signature that fails, not one of the checks after it."""
    for i in range(end):
        with pytest.raises(SelfsameError, match="not proved"):
            which(raw=raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :])


@pytest.mark.parametrize(("which", "raw", "start"), [(sgx, SGX, 436), (tdx, TDX, 636)])
def test_a_flipped_byte_in_the_signature(which, raw, start):
    for i in range(start, start + 128):  # the signature and the key that made it
        with pytest.raises(SelfsameError, match="not proved"):
            which(raw=raw[:i] + bytes([raw[i] ^ 0x40]) + raw[i + 1 :])


def test_forged_report_data_does_not_pass_with_the_data_expected():
    at = SGX.index(SGX_DATA)
    forged = SGX[:at] + bytes(64) + SGX[at + 64 :]
    with pytest.raises(SelfsameError, match="not proved"):
        sgx(raw=forged, expected=bytes(64))


@pytest.mark.parametrize("cut", [0, 1, 47, 48, 431, 436, 1000, 4000])
def test_a_cut_quote(cut):
    with pytest.raises(SelfsameError):
        sgx(raw=SGX[:cut])
    with pytest.raises(SelfsameError):
        tdx(raw=TDX[:cut])


def test_collateral_of_another_platform_or_none():
    with pytest.raises(SelfsameError, match="not proved"):
        sgx(collateral=TDX_PROOF)
    with pytest.raises(SelfsameError, match="collateral is needed"):
        sgx(collateral=None)
    for bad in ("", "{}", "[]", "not JSON", SGX_PROOF[:-10]):
        with pytest.raises(SelfsameError, match="not proved"):
            sgx(collateral=bad)


def test_changed_collateral():
    """A TCB level raised by hand no longer carries Intel's signature."""
    changed = SGX_PROOF.replace(HARDENING, "UpToDate")
    assert changed != SGX_PROOF
    with pytest.raises(SelfsameError, match="not proved"):
        sgx(collateral=changed)


def test_wrong_measurement():
    other = "sgx:" + "00" * 32
    with pytest.raises(SelfsameError, match=f"measurement {MRENCLAVE}"):
        sgx(policy=Policy(frozenset({other}), SGX_POLICY.statuses))
    with pytest.raises(SelfsameError, match="measurement tdx:"):
        tdx(policy=Policy(frozenset({MRENCLAVE})))
    with pytest.raises(SelfsameError, match="list of 0"):
        tdx(policy=Policy())


def test_wrong_report_data():
    for wrong in (bytes(64), SGX_DATA[:-1], b""):
        with pytest.raises(SelfsameError, match="key, nonce or training plan"):
            sgx(expected=wrong)
        with pytest.raises(SelfsameError, match="key, nonce or training plan"):
            tdx(expected=wrong)


def test_outdated_tcb():
    with pytest.raises(SelfsameError, match=r"not proved.*TCB level"):
        check(OUTDATED, b"", Policy(), OUTDATED_PROOF, on("2026-03-01"))
    with pytest.raises(SelfsameError, match=f"TCB status {HARDENING}, accepted is UpToDate"):
        sgx(policy=Policy(frozenset({MRENCLAVE})))


def test_no_policy_accepts_a_revoked_platform():
    for status in ("Revoked", "revoked", "anything"):
        with pytest.raises(SelfsameError, match="cannot be accepted"):
            Policy(statuses=frozenset({status}))


class Forger:
    """A library that finds every signature good, to see what is checked besides."""

    def __init__(self, status="UpToDate"):
        self.status, self.advisory_ids = status, []
        self.QuoteCollateralV3, self.parse_quote = qvl.QuoteCollateralV3, qvl.parse_quote

    def verify(self, raw, collateral, now):
        return self


def test_debug_mode_is_refused_though_all_else_is_right(monkeypatch):
    monkeypatch.setattr(attest, "_library", Forger)
    assert sgx().kind == "sgx"
    with pytest.raises(SelfsameError, match="debug"):
        sgx(raw=SGX[:96] + bytes([SGX[96] | 2]) + SGX[97:])
    assert tdx().kind == "tdx"
    for bit in range(8):
        with pytest.raises(SelfsameError, match="debug"):
            tdx(raw=TDX[:168] + bytes([TDX[168] | 1 << bit]) + TDX[169:])


@pytest.mark.parametrize("status", ["OutOfDate", "Revoked", "SWHardeningNeeded", "", "uptodate"])
def test_every_other_status_is_refused(monkeypatch, status):
    monkeypatch.setattr(attest, "_library", lambda: Forger(status))
    with pytest.raises(SelfsameError, match="TCB status"):
        tdx()


def test_measurements_by_hand(monkeypatch):
    import hashlib

    assert attest.read_measurement(SGX) == "sgx:" + SGX[112:144].hex()
    body = TDX[48:632]
    mrtd, config, owner, owner_config = (body[at : at + 48] for at in (136, 184, 232, 280))
    expected = hashlib.sha384(mrtd + config + owner + owner_config + body[328:520]).hexdigest()
    assert attest.read_measurement(TDX) == f"tdx:{expected}"
    monkeypatch.setattr(attest, "_library", Forger)
    for at in (136, 184, 232, 280, 328, 376, 424, 472):  # each register counts
        changed = TDX[: 48 + at] + bytes([TDX[48 + at] ^ 1]) + TDX[49 + at :]
        with pytest.raises(SelfsameError, match="measurement"):
            tdx(raw=changed)
    with pytest.raises(SelfsameError, match="cannot be read"):
        attest.read_measurement(b"no quote")


def test_a_simulated_quote_needs_an_explicit_word(tmp_path):
    data = random.Random(0).randbytes(64)
    raw = quote.take(data, tmp_path / "none", tmp_path / "none")
    for policy in (Policy(), SGX_POLICY, Policy(frozenset({"simulated"}))):
        with pytest.raises(SelfsameError, match="simulated"):
            check(raw, data, policy, SGX_PROOF, INSIDE)
    allowing = Policy(allow_simulated=True)
    got = check(raw, data, allowing, None)
    assert got.simulated and "SIMULATED" in str(got)
    with pytest.raises(SelfsameError, match="training plan"):
        check(raw, bytes(64), allowing, None)


def test_allowing_simulated_quotes_does_not_weaken_the_others():
    with pytest.raises(SelfsameError, match="measurement"):
        sgx(policy=Policy(statuses=SGX_POLICY.statuses, allow_simulated=True))
    with pytest.raises(SelfsameError, match="collateral"):
        check(SGX, SGX_DATA, Policy(allow_simulated=True), None)


@given(st.binary(max_size=600))
def test_any_bytes_are_refused(raw):
    with pytest.raises(SelfsameError):
        check(raw, bytes(64), Policy(allow_simulated=True), SGX_PROOF, INSIDE)


def test_a_quote_that_is_too_long():
    with pytest.raises(SelfsameError, match="longer"):
        sgx(raw=SGX + bytes(1 << 16))


def test_without_the_library_nothing_is_accepted(monkeypatch):
    monkeypatch.setitem(sys.modules, "dcap_qvl", None)
    with pytest.raises(SelfsameError, match=r"selfsame\[enclave\]"):
        sgx()


def test_nothing_but_a_nonce_leaves_a_device_before_the_proof(monkeypatch):
    """A genuine quote of somebody else's enclave: no hello, no session, nothing to seal with."""
    plan = Mandate("linear", 3, 15, {}, {"kind": "none"}, 2, 2, 4, 1.0, 1.0, 1, 0)
    device = Participant(plan, SGX_POLICY, SGX_PROOF)
    monkeypatch.setattr("selfsame.deploy.split.attest.time.time", lambda: INSIDE)
    sealed = []
    monkeypatch.setattr("selfsame.enclave.seal.hello", lambda *a: sealed.append(a))
    with pytest.raises(SelfsameError, match="key, nonce or training plan"):
        device.hello(bytes(32) + SGX)
    assert sealed == [] and device.attested is None
    assert len(device.nonce) == 32 and device.nonce != Participant(plan, SGX_POLICY).nonce
