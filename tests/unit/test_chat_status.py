"""The status line: model, workspace, session and activity in one line, however narrow the terminal."""

import pytest

from outrider.cli.chat.sanitize import cell_width
from outrider.cli.chat.status import StatusInfo, render_status, short_count, short_path, short_time

IDLE = StatusInfo("practice", "/srv/project")
WORKING = StatusInfo("anthropic:claude", "/srv/project", "notes", 12_345, 0.00123, 12, 2, 1)


def test_an_idle_chat_shows_model_workspace_and_session() -> None:
    assert render_status(IDLE) == "practice · /srv/project · new session · idle"


def test_a_working_chat_shows_usage_duration_and_queue() -> None:
    assert render_status(WORKING) == (
        "anthropic:claude · /srv/project · notes · 12.3k tokens · $0.0012 · working 12 s · 2 queued · +1 session"
    )


def test_the_number_of_tasks_and_an_open_question_are_shown() -> None:
    asking = StatusInfo("practice", "/srv/project", "notes", seconds=12, tasks=2, is_asking=True)
    assert render_status(asking) == "practice · /srv/project · notes · waiting for your answer · 2 tasks"
    assert render_status(StatusInfo("practice", "/srv", "s", tasks=1)) == "practice · /srv · s · idle · 1 task"


def test_a_missing_sandbox_is_shown_first_and_never_clipped() -> None:
    off = StatusInfo("openrouter:" + "m" * 90, "/srv/" + "w" * 90, "s", is_unconfined=True)
    assert (
        render_status(StatusInfo("practice", "/srv", "s", is_unconfined=True))
        == "NO SANDBOX · practice · /srv · s · idle"
    )
    assert render_status(off, 20).startswith("NO SANDBOX · ")


def test_a_cost_of_zero_is_shown() -> None:
    assert "$0.0000" in render_status(StatusInfo("practice", "/srv", "s", cost=0.0))


@pytest.mark.parametrize("columns", [10, 20, 40, 80, 200])
def test_the_status_fits_the_width(columns: int) -> None:
    long = StatusInfo("openrouter:" + "m" * 90, "/srv/" + "w" * 90, "会" * 90, 12_345, 0.00123, 12, 2, 1)
    assert cell_width(render_status(long, columns)) <= columns


def test_numbers_and_durations_are_short() -> None:
    assert [short_count(n) for n in (0, 999, 1_000, 12_345, 3_400_000)] == ["0", "999", "1.0k", "12.3k", "3.4M"]
    assert [short_time(n) for n in (0, 119, 120, 7_200, 200_000)] == ["0 s", "119 s", "2 min", "2 h", "2 d"]


def test_a_path_is_relative_to_the_home_folder_and_clipped_at_its_beginning() -> None:
    home = "/srv/people/ann"
    assert [short_path(path, 20, home) for path in (home, f"{home}/work", f"{home}x", "/srv/" + "a" * 30)] == [
        "~",
        "~/work",
        "/srv/people/annx",
        "…" + "a" * 19,
    ]
