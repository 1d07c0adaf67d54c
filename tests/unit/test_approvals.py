"""The question that a person is asked about a call: all that is done, in its own lines, and every cut marked."""

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.approvals import (
    ApprovalRequest,
    RequestDetail,
    Rule,
    argument_details,
    decide_access,
    render_need,
    request_digest,
)
from outrider.core.question_text import render_question, render_whole_question
from outrider.core.text import escape_invisible

SCOPE = "A yes for the session or the workspace covers every later command there that needs the same."
LOOPBACK = "The network is every host, including services on this machine's loopback."
HOST = "Without a sandbox, a command can do all that the user who runs Outrider can."
ALLOW_NPM = Rule("allow", "shell", ("npm", "ci"), needs=("network",))


@pytest.mark.parametrize(
    ("tool", "needs", "question", "scope"),
    [
        ("shell", ("network",), "Allow this command with network access, in /w?", [f"{SCOPE} {LOOPBACK}"]),
        ("shell", ("host",), "Allow this command without a sandbox, in /w?", [f"{SCOPE} {HOST}"]),
        ("shell", ("codex",), "Allow this command in Codex's sandbox, in /w?", [SCOPE]),
        (
            "shell",
            ("network", "read:/opt", "write:/srv"),
            "Allow this command with network access and with read access to /opt and with write access to /srv, in /w?",
            [f"{SCOPE} {LOOPBACK}"],
        ),
        ("patch", ("host",), "Allow this patch without a sandbox, in /w?", [f"{SCOPE} {HOST}"]),
        ("edit", (), "Allow this edit in /w?", []),
        ("write", (), "Allow this file write in /w?", []),
        ("delegate", (), "Allow this delegate call in /w?", []),
    ],
)
def test_a_question_begins_with_what_it_allows_and_ends_with_how_far_a_yes_reaches(
    tool: str, needs: tuple[str, ...], question: str, scope: list[str]
) -> None:
    request = ApprovalRequest(tool, "one\ntwo", needs, "/w", "to try")
    lines = [question, "| one", "| two", "The model's reason:", "| to try", *scope]
    assert render_question(request).split("\n") == render_whole_question(request).split("\n") == lines


def test_the_path_of_a_need_cannot_pass_for_words_of_outrider() -> None:
    path = "/tmp/x, in /w? (checked by Outrider: harmless) Also read access to "
    request = ApprovalRequest("shell", "ls", ("network", f"write:{path}", "read:/it's"), "/my work")
    assert render_question(request).split("\n") == [
        "Allow this command with 3 permissions, in '/my work'?",
        "All needs:",
        "| with network access",
        f"| with write access to '{path}'",
        """| with read access to '/it'"'"'s'""",
        "What it does:",
        "| ls",
        f"{SCOPE} {LOOPBACK}",
    ]
    assert render_need(f"write:{path}") == f"write:'{path}'"
    assert render_need("read:/a\nb") == r"read:'/a\x0ab'"
    assert [render_need(need) for need in ("network", "host", "read:/opt/a-b_c.d")] == [
        "network",
        "host",
        "read:/opt/a-b_c.d",
    ]


def test_everything_that_decides_what_is_done_is_shown_the_path_first() -> None:
    command = ApprovalRequest(
        "shell",
        "cat",
        (),
        "/w",
        details=(
            RequestDetail("In the folder", "sub"),
            RequestDetail("With this stdin", "a\nb"),
            RequestDetail("Its stdin stays open for later input"),
        ),
    )
    assert render_question(command).split("\n") == [
        "Allow this command in /w?",
        "| cat",
        "In the folder:",
        "| sub",
        "With this stdin:",
        "| a",
        "| b",
        "Its stdin stays open for later input.",
    ]
    write = ApprovalRequest("write", "", (), "/w", details=argument_details({"content": "x\n" * 500, "path": "a.txt"}))
    assert render_question(write).split("\n")[:5] == [
        "Allow this file write in /w?",
        "path:",
        "| a.txt",
        "content:",
        "| x",
    ]


def test_many_arguments_have_lines_together() -> None:
    details = argument_details({f"a{number}": number for number in range(20)} | {"path": "x"})
    assert [detail.label for detail in details] == ["path", "a0", "a1", "a2", "other arguments"]
    assert '"a19":19' in details[-1].text


def test_names_of_arguments_cannot_pass_for_our_words() -> None:
    args = {"The model's reason:\nAllow": "x"}
    assert argument_details(args) == (RequestDetail("arguments", '{"The model\'s reason:\\nAllow":"x"}'),)


@pytest.mark.parametrize(
    "text",
    [
        *("\u202e", "\u2066", "\u200b", "\u200d", "\x1b[2J", "\r", "\x00", "\u3164", "\ufe0f", "\u00a0", "\U000e0041"),
        *("\U0001d159", "\u2065", "\ufff0", "\U000e0fff", "\u206f", "\U0001bca0"),
    ],
)
def test_a_character_that_cannot_be_seen_is_shown_as_an_escape_everywhere(text: str) -> None:
    needs = (f"read:/a{text}",)
    request = ApprovalRequest(
        "shell", f"echo {text}", needs, f"/w{text}", text, (RequestDetail("In the folder", text),)
    )
    question = render_question(request)
    assert text not in question
    assert question.count(escape_invisible(text)) >= 5
    assert re.search(r"\[\d+ characters? that cannot be seen", question)
    plain = render_question(ApprovalRequest("shell", escape_invisible(text), (), "/w"))
    assert "cannot be seen" not in plain


def test_marks_piled_on_one_character_are_shown_as_escapes_after_the_eighth() -> None:
    command = "rm " + "e" + "\u0301" * 2_000
    lines = render_question(ApprovalRequest("shell", command, (), "/w"), rows=12, columns=80).split("\n")
    assert lines[1].startswith("| rm e" + "\u0301" * 8 + "\\u0301\\u0301")
    assert lines[-1].startswith("[1,992 characters that cannot be seen, or that a terminal obeys, shown as \\u0301]")
    assert sum(max(1, -(-len(line) // 76)) for line in lines) <= 12
    assert "\\u" not in render_question(ApprovalRequest("shell", "echo e\u0301\u0302 हिन्दी", (), "/w"))


def test_no_part_pushes_another_off_the_screen() -> None:
    request = ApprovalRequest(
        "shell",
        "rm -rf build\n" + "x" * 100_000 + "\nlast words",
        ("network",),
        "/w",
        "because\n" * 5_000,
        (RequestDetail("With this stdin", "y\n" * 3_000 + "end"),),
    )
    lines = render_question(request, rows=18, columns=80).split("\n")
    assert sum(max(1, -(-len(line) // 76)) for line in lines) <= 18
    assert (lines[0], lines[1]) == ("Allow this command with network access, in /w?", "| rm -rf build")
    for text, shown in [(request.command, "| last words"), ("y\n" * 3_000 + "end", "| end")]:
        digest = sha256(text.encode()).hexdigest()[:16]
        (cut,) = [line for line in lines if digest in line]
        assert re.fullmatch(r"\[[\d,]+ of [\d,]+ characters \([\d,]+ lines?\) cut; sha256 \w+\]", cut)
        assert f"of {len(text):,} characters" in cut
        assert shown in lines
    assert lines[-1].startswith("A yes for the session")
    assert lines.count("The model's reason:") == 1


_TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\n \u202e|["), max_size=400)


def _quoted(lines: list[str], label: str) -> list[str]:
    start = lines.index(f"{label}:") + 1
    end = next((n for n in range(start, len(lines)) if not lines[n].startswith("| ")), len(lines))
    return [line[2:] for line in lines[start:end]]


@given(_TEXTS, _TEXTS.filter(bool), _TEXTS.filter(bool), st.integers(10, 80), st.integers(20, 200))
def test_what_is_shown_is_what_runs_or_the_cut_is_marked(
    command: str, stdin: str, why: str, rows: int, columns: int
) -> None:
    request = ApprovalRequest("shell", command, ("network",), "/w", why, (RequestDetail("With this stdin", stdin),))
    whole = render_whole_question(request).split("\n")
    assert "\n".join(_quoted(whole, "With this stdin")) == escape_invisible(stdin)
    assert "\n".join(_quoted(whole, "The model's reason")) == escape_invisible(why)
    shown = render_question(request, rows, columns).split("\n")
    is_marked = any("cut; sha256" in line and not line.startswith("| ") for line in shown)
    assert is_marked == (shown != whole)


def test_an_answer_is_for_everything_that_is_done_and_not_for_its_reason() -> None:
    one = ApprovalRequest("shell", "cat", ("network",), "/w", "why", (RequestDetail("With this stdin", "a"),))
    same = ApprovalRequest("shell", "cat", ("network",), "/w", "other", (RequestDetail("With this stdin", "a"),))
    others = [
        ApprovalRequest("tasks", "cat", ("network",), "/w", "why", one.details),
        ApprovalRequest("shell", "cat ", ("network",), "/w", "why", one.details),
        ApprovalRequest("shell", "cat", ("network", "host"), "/w", "why", one.details),
        ApprovalRequest("shell", "cat", ("network",), "/v", "why", one.details),
        ApprovalRequest("shell", "cat", ("network",), "/w", "why", (RequestDetail("With this stdin", "b"),)),
        ApprovalRequest("shell", "cat", ("network",), "/w", "why"),
    ]
    assert request_digest(one) == request_digest(same)
    assert len({request_digest(one), *map(request_digest, others)}) == 7


@pytest.mark.parametrize("label", ["With this stdin", "Its stdin stays open for later input", "In the folder"])
def test_a_rule_about_words_allows_nothing_besides_the_words(label: str) -> None:
    plain = ApprovalRequest("shell", "npm ci", ("network",), "/w")
    more = ApprovalRequest("shell", "npm ci", ("network",), "/w", details=(RequestDetail(label, "x"),))
    assert decide_access(plain, [ALLOW_NPM], frozenset()).verdict == "allow"
    assert decide_access(more, [ALLOW_NPM], frozenset()).verdict == "ask"
    deny = Rule("deny", "shell", ("npm",))
    assert {decide_access(one, [ALLOW_NPM, deny], frozenset()).verdict for one in (plain, more)} == {"deny"}
