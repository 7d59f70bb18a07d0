"""`selfsame audit`: a table that fits a terminal, a file beside the run, a section in its report."""

import json

import pytest

SMALL = ("--set", "data.turns=1", "--set", "local.batch=4", "--device", "cpu", "--rounds", 3, "--quiet")


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return call


def test_an_audit_of_a_run(selfsame, tmp_path):
    run = tmp_path / "run"
    assert selfsame("train", "fedhide", *SMALL, "--set", "neighbours=3", "--out", run)[0] == 0
    assert "strongest attacker" not in (run / "report.html").read_text()
    code, out, err = selfsame("audit", run, "--rounds", 2, "--quiet")
    assert code == 0 and err == ""
    table, _, below = out.partition("Found: owners")
    assert max(map(len, table.splitlines())) <= 80
    for name in ("proxies", "updates", "differences", "membership", "active"):
        assert name in table
    assert below.count("The strongest attacker: ") == 1 and "nothing stops it" in below
    kept = json.loads((run / "audit.json").read_text())
    assert (kept["round"], kept["aggregation"], kept["clients"]) == (3, "clear", 7)
    shares = [one["identified"] - one["chance"] for one in kept["findings"] if one["applies"] and one["vectors"]]
    assert kept["strongest"]["identified"] - kept["strongest"]["chance"] == max(shares) > 0
    page = (run / "report.html").read_text()
    assert "What the strongest attacker got" in page and kept["findings"][0]["did"] in page
    (run / "result.json").unlink()  # of a run that has not ended: there is no report to write anew
    code, out, _ = selfsame("audit", run, "--attacker", "proxies", "--json", "--rounds", 2, "--quiet")
    assert code == 0 and {one["attacker"] for one in json.loads(out)["findings"]} == {"proxies"}
    before = (run / "audit.json").read_bytes()
    for words, said in (
        (("audit", run, "--attacker", "proxy"), "--attacker proxy: is not known; did you mean 'proxies'?"),
        (("audit", run, "--lpips", run / "audit.json"), "no weights of LPIPS"),
        (("audit", run, "--rounds", 0), "--rounds: must be at least 1"),
        (("audit", tmp_path / "nowhere"), "nowhere"),
    ):
        code, out, err = selfsame(*words)
        assert code == 2 and said in err and err.count("\n") == 1
    assert (run / "audit.json").read_bytes() == before and not (tmp_path / "nowhere").exists()


def test_a_method_that_sends_nothing_gives_nothing_away(selfsame, tmp_path):
    run = tmp_path / "alone"
    assert selfsame("train", "deepsvdd", *SMALL, "--set", "net.bias=false", "--out", run)[0] == 0
    code, out, _ = selfsame("audit", run, "--quiet")
    assert code == 0 and "Nobody gets more than a guess would." in out


def test_where_no_attacker_fits_nothing_is_promised(selfsame, tmp_path):
    run = tmp_path / "split"
    # The last layer stays as it is: nobody here reads the others.
    assert selfsame("train", "fdml", *SMALL, "--set", 'net.train="conv*"', "--out", run)[0] == 0
    code, out, _ = selfsame("audit", run, "--quiet")
    assert code == 0 and "No attacker here fits this run" in out and "Nobody gets more" not in out
    assert json.loads((run / "audit.json").read_text())["findings"] == []
    report = (run / "report.html").read_text()
    assert "not tried" in report and "at chance" not in report


def test_what_an_enclave_computes_is_attacked_too(selfsame, tmp_path):
    run = tmp_path / "split"
    assert selfsame("train", "fdml", *SMALL, "--out", run)[0] == 0
    code, out, _ = selfsame("audit", run, "--rounds", 2, "--quiet")
    assert code == 0 and "aggregation enclave" in out and "No attacker" not in out
    above, below = ([one for one in json.loads((run / "audit.json").read_text())["findings"] if one["applies"] is there]
                    for there in (True, False))  # fmt: skip
    assert {"a sum of 7", "cohorts of 7", "sybils, 1 honest"} <= {one["did"] for one in above}
    assert {"one update", "over rounds", "a sum of 2"} <= {one["did"] for one in below}
    assert "What the strongest attacker got" in (run / "report.html").read_text()


def test_choose_prints_what_keeps_the_promise(selfsame):
    few = ("--methods", "feduv", "--rounds", 1, "--watched", 2, "--device", "cpu", "--quiet")
    code, out, err = selfsame("choose", "--most-leakage", 0.3, *few)
    assert code == 0 and err == ""
    assert "masked" in out and "clear" not in out and "1 of 2 settings" in out
    assert max(map(len, out.split("1 of 2")[0].splitlines())) <= 80
    for words, said in (
        (("--most-leakage", 2), "--most-leakage: must lie between 0 and 1"),
        (("--most-leakage", 0.5, "--aggregations", "hidden"), "--aggregations hidden: must be one of"),
        (("--most-leakage", 0.5, "--methods", "fedhid"), "did you mean 'fedhide'"),
    ):
        code, out, err = selfsame("choose", *words)
        assert code == 2 and said in err and err.count("\n") == 1
