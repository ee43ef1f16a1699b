"""`ledger why`: the whole story, in order, and as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ledger.client import Ledger
from ledger.lease import Lease
from ledger.sandbox import SandboxProcess
from tests.commands.conftest import Cli
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added, drawn, in_state

VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page as tags: whether each was closed, what it would load, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def two_workers(cli: Cli, ledger: Ledger, rivals: Ledger) -> int:
    """A worker claims and freezes, another takes over and sends; the first one's confirm comes too late."""
    added(ledger, "r_1")
    frozen = activated(ledger, ALICE)
    ledger.claim_refund(MERCHANT, "r_1", frozen)
    token = activated(rivals, BOB)
    rivals.claim_refund(MERCHANT, "r_1", token)
    cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re_1", "--token", frozen, "--reason", "late")
    rivals.confirm_refund(MERCHANT, "r_1", token, "re_1", {"amount_minor": 7025})
    return token


def why(cli: Cli, *more: object) -> Any:
    said = cli("why", MERCHANT, "r_1", *more)
    assert said.code == 0, said.err
    return said


@pytest.mark.usefixtures("two_workers")
def test_the_story_is_told_in_order(cli: Cli) -> None:
    story = why(cli, "-o", "json").json["story"]

    assert [(one["text"], one["holder"]) for one in story] == [
        ("added -> pending", None),
        ("token 1 activated", ALICE),
        ("pending -> sending", ALICE),
        ("token 2 activated", BOB),
        ("sending -> sending", BOB),
        ("refused LG101 confirm_refund", ALICE),
        ("sending -> sent", BOB),
    ]
    assert [one["at"] for one in story] == sorted(one["at"] for one in story)
    assert story[-1]["money"] == "70.25 EUR: refund_reserved to gateway_clearing"
    assert story[-1]["evidence"] == {"amount_minor": 7025}


def test_what_went_on_around_it_is_part_of_it(cli: Cli, ledger: Ledger, operators: Ledger) -> None:
    added(ledger, "r_1")
    activated(ledger)
    operators.break_lease(RESOURCE, ALICE, "carol", "its host is gone")
    operators.pause(RESOURCE, "carol", "incident")
    operators.resume(RESOURCE, "carol", "over")
    drawn(ledger)

    texts = [one["text"] for one in why(cli, "-o", "json").json["story"]]

    assert texts == [
        "added -> pending",
        "token 1 activated",
        "token 2 activated",
        f"lease of {ALICE} broken",
        "paused",
        "resumed",
        "token 3 drawn, not activated",
    ]


def test_other_merchants_and_refunds_are_not(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    in_state("sent", "r_2", token, ledger, admin)
    added(ledger, "r_1")
    activated(ledger, resource="settle:m_2")

    assert [one["text"] for one in why(cli, "-o", "json").json["story"]] == ["added -> pending"]


def test_the_lease_now_and_what_may_be_done(cli: Cli, ledger: Ledger, dsn: str, redis_url: str, admin: Any) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url) as lease:
        in_state("unknown", "r_1", lease.token, ledger, admin)
        found = why(cli, "-o", "json").json

    assert found["lease"]["held"] is True
    assert (found["lease"]["holder"], found["lease"]["token"]) == (lease.holder, lease.token)
    assert "ledger fail m_1 r_1 --reason WHY" in found["next"]
    assert why(cli, "-o", "json").json["lease"]["held"] is False


def test_a_redis_that_is_down_does_not_hide_the_story(cli: Cli, ledger: Ledger) -> None:
    added(ledger, "r_1")
    said = why(cli, "--redis", "redis://127.0.0.1:1", "-o", "json")
    assert said.json["lease"]["seen"] is False
    assert "the lease wasn't looked at" in said.err


def test_the_gateway_is_asked_where_there_is_one(
    cli: Cli, ledger: Ledger, admin: Any, gateway: SandboxProcess, database: str
) -> None:
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", idempotency_key=f"{database}/why")

    found = why(cli, "--gateway", gateway.url, "-o", "json").json["gateway"]

    assert found == {"key": f"{database}/why", "answer": "nothing", "text": "it has nothing under that key"}


@pytest.mark.usefixtures("two_workers")
def test_a_person_reads_it_as_a_table(cli: Cli) -> None:
    out = why(cli).out
    assert re.search(r"^state +sent$", out, re.MULTILINE)
    assert "nobody has it" in out
    assert "refused LG101 confirm_refund" in out
    assert out.rstrip().endswith("ledger return m_1 r_1 --evidence WORDS --reason WHY")


@pytest.mark.usefixtures("two_workers")
def test_a_page_has_a_timeline_for_each_holder_and_needs_no_network(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "why.html"
    said = why(cli, "--html", file)
    assert (said.out, said.err) == ("", f"the story of m_1 r_1 is in {file}\n")

    page = Page(file.read_text())
    assert page.open == []
    assert all(re.fullmatch("#e[1-7]", link) for link in page.links)
    assert page.tags.count("circle") == 7
    text = " ".join(page.words)
    assert f"token 1: {ALICE}" in text
    assert f"token 2: {BOB}" in text
    assert not re.search(r"https?://|url\(|@import|<script", file.read_text())


def test_what_others_wrote_does_not_become_part_of_the_page(cli: Cli, ledger: Ledger, tmp_path: Path) -> None:
    added(ledger, "r_1")
    token = activated(ledger, "<b>alice")
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.mark_unknown(MERCHANT, "r_1", token, "</td><script>alert(1)</script>", {"page": "<img src=x>"})
    why(cli, "--html", tmp_path / "why.html")

    page = Page((tmp_path / "why.html").read_text())
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)


def test_one_event_and_hundreds_make_a_page(cli: Cli, ledger: Ledger, operators: Ledger, tmp_path: Path) -> None:
    added(ledger, "r_1")
    why(cli, "--html", tmp_path / "one.html")
    assert Page((tmp_path / "one.html").read_text()).tags.count("circle") == 1

    operators.set_kind("settle", max_attempts=1000, actor="tests", reason="many attempts")
    for number in range(60):
        token = activated(ledger, f"worker-{number % 7}/1/0123456789abcdef")
        ledger.claim_refund(MERCHANT, "r_1", token)
        ledger.mark_unknown(MERCHANT, "r_1", token, "timeout")
    why(cli, "--html", tmp_path / "many.html")
    page = Page((tmp_path / "many.html").read_text())
    assert page.open == []
    assert page.tags.count("circle") == 182


def test_a_page_that_cannot_be_written(cli: Cli, ledger: Ledger, tmp_path: Path) -> None:
    added(ledger, "r_1")
    said = cli("why", MERCHANT, "r_1", "--html", tmp_path / "nowhere" / "why.html")
    assert said.code == 2
    assert "can't be written: No such file or directory" in said.err


def test_a_refund_that_is_not_there(cli: Cli) -> None:
    assert cli("why", MERCHANT, "r_9").code == 5
