"""The glossary is in order, short, and links to where a word matters; the pages' links lead somewhere."""

import re
from dataclasses import fields

import pytest
from shell import PAGES, prose

from selfsame.config.recipe import SumsPart
from selfsame.deploy.policy import DevicePolicy
from selfsame.device.rules import RULES
from selfsame.methods.wire import Sight
from selfsame.report.words import AGGREGATIONS

DOCS = PAGES / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r'^<a id="([^"]+)"></a>\*\*(.+?)\*\* – (.*?)(?=\n\n|\Z)', GLOSSARY, re.MULTILINE | re.DOTALL)
TEXT = {anchor: text for anchor, _, text in ENTRIES}
WANTED = "prototype proxy codeword centre template cohort helper sum group stand-in poll sight enclave agreement policy"
WANTED += " enrolment eer identified chance leakage p-at-1"
MERGED = pytest.mark.skipif(not (DOCS / "guides").is_dir(), reason="the guides are not here")


def links(page):
    """(file, anchor) of every relative link of a page."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(page))
    return [(file, anchor) for file, anchor in found if not file.startswith("http")]


def test_words_are_there_once_and_in_order():
    anchors = [anchor for anchor, _, _ in ENTRIES]
    assert set(WANTED.split()) <= set(anchors) and len(set(anchors)) == len(anchors)
    assert GLOSSARY.count("<a id=") == len(ENTRIES)
    names = [re.sub(r"[^a-z0-9 ]", "", name.lower()) for _, name, _ in ENTRIES]
    assert names == sorted(names)


@pytest.mark.parametrize(("name", "text"), [entry[1:] for entry in ENTRIES])
def test_an_entry_is_short_and_links_on(name, text):
    assert links(text), f"{name}: no link"
    assert len(text.split()) <= 50, f"{name}: {len(text.split())} words"


def listed(name):
    """The words in backticks of an entry."""
    return set(re.findall(r"`([^`]+)`", TEXT[name]))


def test_what_an_entry_lists_is_what_there_is():
    assert listed("rule") == set(RULES)
    assert listed("aggregation") == set(AGGREGATIONS)
    assert all(sight.name.lower() in TEXT["sight"] for sight in Sight)
    assert listed("quiet") | listed("clip") == {"sums.quiet", "sums.clip"}
    assert {"quiet", "clip"} <= {part.name for part in fields(SumsPart)}


@pytest.mark.parametrize(
    ("word", "about"),
    [
        ("participants", "how many devices"), ("clear", "see an update by itself"), ("noise", "noise"),
        ("work", "work"), ("parameters", "size of the network"), ("helpers", "helpers"), ("measurements", "enclaves"),
    ],
)  # fmt: skip
def test_a_policy_has_the_limits_that_its_entry_names(word, about):
    assert about in " ".join(TEXT["policy"].split()) and word in {part.name for part in fields(DevicePolicy)}


def test_the_tutorial_links_to_words_that_are_there():
    tutorial = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    words = {anchor for file, anchor in links(tutorial) if file == "glossary.md"}
    assert words and words <= {anchor for anchor, _, _ in ENTRIES}


@MERGED
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/glossary.md"])
def test_links_lead_to_files(page):
    path = PAGES / page
    for file, _ in links(path.read_text(encoding="utf-8")):
        generated = (path.parent / file).resolve().is_relative_to((DOCS / "reference").resolve())
        assert generated or (path.parent / file).exists(), f"{page}: {file}"
