"""What attackers got, in a table and in words."""

from selfsame.report.findings import NOTHING_TRIED, attacked, audit_remarks, audit_rows, audit_sheet, strongest_words


def finding(**given):
    plain = {
        "attacker": "updates", "did": "one update", "who": "server", "under": "clear", "identified": 1.0,
        "cosine": 0.987, "chance": 0.071, "rounds": 1, "said": "", "seconds": 0.2, "applies": True,
    }  # fmt: skip
    return {**plain, **given}


def audit(*found, **rest):
    return {"title": "a run", "round": 7, "aggregation": "clear", "findings": list(found), "strongest": None, **rest}


def test_a_row():
    (row,) = audit_rows(audit(finding()))
    assert row == ["updates", "one update", "server, clear", "100", "0.99", "7", "1"]
    (row,) = audit_rows(audit(finding(identified=None, cosine=None, rounds=0, under="any")))
    assert row == ["updates", "one update", "server", "–", "–", "7", "0.2 s"]


def test_what_applies_comes_first():
    sheet = audit_sheet(audit(finding(applies=False, did="else"), finding()))
    assert [row[1] for row in sheet.rows] == ["one update", "else"] and list(sheet.ends) == [0]
    assert list(audit_sheet(audit(finding())).ends) == []


def test_words():
    best = finding()
    assert strongest_words(audit(best, strongest=best)) == (
        "The strongest attacker: updates, one update (server, clear), identifies 100 % of the owners (a guess: 7 %)."
    )
    assert strongest_words(audit(finding(identified=0.07))) == "Nobody gets more than a guess would."
    assert strongest_words(audit(sends=False)) == "Nobody gets more than a guess would."
    for found in ([], [finding(applies=False)], [finding(vectors=False)]):  # that is no promise
        assert strongest_words(audit(*found)) == NOTHING_TRIED and not attacked(audit(*found))
    twice = [finding(said="nothing stops it"), finding(said="nothing stops it", did="a sum"), finding(said="")]
    hidden = finding(said="not of this run", applies=False)
    assert audit_remarks(audit(*twice, hidden)) == ["updates, one update; updates, a sum: nothing stops it."]


def test_a_file_of_another_version_shows_what_it_can():
    assert audit_rows({"findings": [{"attacker": "x"}]}) == []
