"""The status line says where one is, in one line, however narrow."""

import pytest

from outrider.cli.chat.sanitize import cell_width
from outrider.cli.chat.status import StatusInfo, render_status, short_count, short_path, short_time

AT_REST = StatusInfo("practice", "/srv/project")
AT_WORK = StatusInfo("anthropic:claude", "/srv/project", "notes", 12_345, 0.00123, 12, 2, 1)


def test_at_rest_it_says_the_model_the_folder_and_the_session() -> None:
    assert render_status(AT_REST) == "practice · /srv/project · new session · idle"


def test_at_work_it_says_what_it_took_so_far_and_what_waits() -> None:
    assert render_status(AT_WORK) == (
        "anthropic:claude · /srv/project · notes · 12.3k tokens · $0.0012 · working 12 s · queued 2 · +1 elsewhere"
    )


def test_it_says_how_many_tasks_run_and_that_a_question_waits() -> None:
    asking = StatusInfo("practice", "/srv/project", "notes", seconds=12, tasks=2, is_asking=True)
    assert render_status(asking) == "practice · /srv/project · notes · waits for you · 2 tasks"
    assert render_status(StatusInfo("practice", "/srv", "s", tasks=1)) == "practice · /srv · s · idle · 1 task"


def test_a_cost_of_nothing_is_known_and_said() -> None:
    assert "$0.0000" in render_status(StatusInfo("practice", "/srv", "s", cost=0.0))


@pytest.mark.parametrize("columns", [10, 20, 40, 80, 200])
def test_it_fits(columns: int) -> None:
    long = StatusInfo("openrouter:" + "m" * 90, "/srv/" + "w" * 90, "会" * 90, 12_345, 0.00123, 12, 2, 1)
    assert cell_width(render_status(long, columns)) <= columns


def test_figures_are_short() -> None:
    assert [short_count(n) for n in (0, 999, 1_000, 12_345, 3_400_000)] == ["0", "999", "1.0k", "12.3k", "3.4M"]
    assert [short_time(n) for n in (0, 119, 120, 7_200, 200_000)] == ["0 s", "119 s", "2 min", "2 h", "2 d"]


def test_a_path_begins_at_the_persons_home_and_keeps_its_end() -> None:
    home = "/srv/people/ann"
    assert [short_path(path, 20, home) for path in (home, f"{home}/work", f"{home}x", "/srv/" + "a" * 30)] == [
        "~",
        "~/work",
        "/srv/people/annx",
        "…" + "a" * 19,
    ]
