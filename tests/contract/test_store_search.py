"""What every store guarantees about search."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outrider.core.events import Reply, Result, Started
from outrider.core.store_port import SearchHit, Store
from tests.contract.stores import STORES, session_with, write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    async with STORES[request.param](tmp_path / "home") as opened:
        yield opened


async def excerpts(store: Store, words: str) -> list[str]:
    return [hit.excerpt for hit in await store.search("ann", words)]


async def test_inputs_and_replies_are_found_latest_first_and_results_are_not(store: Store) -> None:
    session = await session_with(store, "the roof leaks", name="house")
    await write(store, session.id, Started(), Reply("the ROOF is mended", 1), Result("c1", "roof"))
    entries = await store.read(session.id)
    assert await store.search("ann", "roof") == [
        SearchHit(session.id, "house", 3, entries[2].at, "the ROOF is mended"),
        SearchHit(session.id, "house", 1, entries[0].at, "the roof leaks"),
    ]
    assert await excerpts(store, "roof leaks") == ["the roof leaks"]
    assert len(await store.search("ann", "roof", limit=1)) == 1


async def test_an_entry_written_after_a_search_is_found_by_the_next(store: Store) -> None:
    session = await session_with(store, "first apple")
    assert await excerpts(store, "apple") == ["first apple"]
    await write(store, session.id, Reply("second apple", 1))
    assert await excerpts(store, "apple") == ["second apple", "first apple"]


async def test_the_beginning_of_a_word_and_a_word_without_accents_are_found(store: Store) -> None:
    await session_with(store, "Déploiement on Überlingen")
    assert await excerpts(store, "deploi") == ["Déploiement on Überlingen"]
    assert await excerpts(store, "uberlingen") == ["Déploiement on Überlingen"]


@pytest.mark.parametrize("words", ["東京", "京都", "東京都", "天気", "都の天", "서울", "カナ"])
async def test_words_of_scripts_without_spaces_are_found(store: Store, words: str) -> None:
    text = "明日の東京都の天気と서울시, カタカナ"
    await session_with(store, text)
    assert await excerpts(store, words) == [text]


async def test_characters_in_another_order_are_not_found(store: Store) -> None:
    await session_with(store, "東京都")
    assert await excerpts(store, "京東") == []


@pytest.mark.parametrize(
    "words",
    [
        '"',
        "'",
        "*",
        "a* OR",
        "NEAR(",
        "AND",
        "NOT x",
        "col:x",
        "(",
        "^",
        "- -",
        "a-b",
        "\0",
        "\ud800",
        "",
        " ",
        "{}",
        "%",
    ],
)
async def test_no_query_is_an_error(store: Store, words: str) -> None:
    await session_with(store, "plain text")
    assert await excerpts(store, words) == []


async def test_an_operator_is_a_word_like_any_other(store: Store) -> None:
    await session_with(store, "this or that")
    assert await excerpts(store, "OR") == ["this or that"]


async def test_an_excerpt_is_short_one_line_and_shows_the_match(store: Store) -> None:
    await session_with(store, "before " * 100 + "\n\nneedle\n\n" + "after " * 100)
    (excerpt,) = await excerpts(store, "Needle")
    assert len(excerpt) == 160
    assert "before needle after" in excerpt
