"""The question that a person is asked about a call."""

import pytest

from outrider.core.approvals import ApprovalRequest, render_approval


@pytest.mark.parametrize(
    ("tool", "needs", "question"),
    [
        ("shell", ("network",), "Allow this command with network access, in /w?"),
        ("shell", ("host",), "Allow this command without a sandbox, in /w?"),
        ("shell", ("codex",), "Allow this command in Codex's sandbox, in /w?"),
        (
            "shell",
            ("network", "read:/opt", "write:/srv"),
            "Allow this command with network access and with read access to /opt and with write access to /srv, in /w?",
        ),
        ("patch", ("host",), "Allow this patch without a sandbox, in /w?"),
        ("edit", (), "Allow this edit in /w?"),
        ("write", (), "Allow this file write in /w?"),
        ("delegate", (), "Allow this delegate call in /w?"),
    ],
)
def test_a_question_begins_with_what_it_allows(tool: str, needs: tuple[str, ...], question: str) -> None:
    request = ApprovalRequest(tool, "one\ntwo", needs, "/w", "to try")
    assert render_approval(request).split("\n") == [question, "| one", "| two", "The model's reason:", "| to try"]
