"""The table of programs in docs/runtimes.md is the result of the last run, and names what the suite tries."""

from tests.contract import program_table
from tests.contract.program_table import BEGIN_MARK, END_MARK, PAGE, TITLES
from tests.contract.programs import PROGRAMS
from tests.contract.runtimes import ABILITIES, UNSCRIPTED, Native
from tests.shape.repository import marks

LIMITS = {"native": Native.limits, **{name: program.limits for name, program in PROGRAMS.items()}}


def test_the_page_shows_the_results_of_the_last_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert (page.count(BEGIN_MARK), page.count(END_MARK)) == (1, 1)
    assert program_table.render(program_table.read()) in page


def test_every_result_is_of_a_program_and_of_every_ability() -> None:
    results = program_table.read()
    assert list(results) == [name for name in TITLES if name in results]
    for name, result in results.items():
        if not result.untried:
            assert (name, list(result.abilities)) == (name, list(ABILITIES))
            assert (name, bool(result.version)) == (name, True)


def test_the_results_were_found_with_the_limits_that_the_programs_have_now() -> None:
    for name, result in program_table.read().items():
        lacking = {ability for ability, has in result.abilities.items() if not has}
        assert (name, lacking) == (name, set() if result.untried else set(LIMITS[name]))
        assert {ability: result.remarks.get(ability) for ability in lacking} == {
            ability: LIMITS[name][ability] for ability in lacking
        }


def test_every_column_is_shown_by_a_test_of_the_suite() -> None:
    shown = {mark.id for mark in marks("ability") if mark.file == "tests/contract/test_runtime.py"}
    assert shown == set(ABILITIES)
    named = {ability for limits in LIMITS.values() for ability in limits}
    named |= {ability for abilities in UNSCRIPTED.values() for ability in abilities}
    named |= {ability for program in PROGRAMS.values() for ability in program.remarks}
    assert named - set(ABILITIES) == set()
