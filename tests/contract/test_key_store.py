"""What every store guarantees about keys, shown through its port alone, and what recovery says about them."""

import ast
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import Refused, StaleClaim
from outrider.core.events import Body, Compacted, Input, Reply
from outrider.core.store_port import Key, KeySpec, KeyStore, Person, SpendLimit
from outrider.store.keys import digest_of, ensure_key, first_key_file, make_key, secret_matches, split_key
from outrider.store.recovery import LOST_KEYS
from outrider.store.sqlite import open_store

pytestmark = pytest.mark.anyio

Opener = Callable[[Path], AbstractAsyncContextManager[KeyStore]]
STORES: dict[str, Opener] = {"sqlite": open_store}
SRC = Path(__file__).parents[2] / "src" / "outrider"
PAGE = 4096


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncGenerator[KeyStore]:
    async with opener(tmp_path / "home") as opened:
        yield opened


def key_spec(name: str = "laptop", person: str = "ann") -> KeySpec:
    return KeySpec(name, person, ("chat", "read"), rate=60, concurrent=3, spend=SpendLimit(2.5, "month"))


async def test_a_key_is_found_as_it_was_created_also_after_a_restart(opener: Opener, tmp_path: Path) -> None:
    async with opener(tmp_path) as store:
        made = await store.create_key("abcdefgh", key_spec(), b"d" * 32)
        assert made == Key("abcdefgh", key_spec(), b"d" * 32, made.created)
        assert await store.find_key("abcdefgh") == made
        assert await store.find_key("bbbbbbbb") is None
    async with opener(tmp_path) as store:
        assert await store.list_keys() == [made]


async def test_the_cost_of_an_entry_is_paid_by_the_key_of_the_newest_input(tmp_path: Path) -> None:
    day = 86_400_000_000
    now = 10 * day
    async with open_store(tmp_path, clock=lambda: now) as store:
        session = await store.create("ann", "", "/folder")
        claim = await store.claim(session.id)

        async def append(body: Body, key: str | None = None) -> None:
            await store.append(session.id, body, claim.generation, key)

        await append(Reply("nobody pays", 0, cost=1.0))
        await store.accept(session.id, Input("hi", payer="aaaaaaaa"), None, queue=20)
        for number in range(10):
            await append(Reply("a tenth", 2, cost=0.1), f"r{number}")
            await append(Reply("a tenth", 2, cost=0.1), f"r{number}")  # the same reply, recorded once
        await append(Reply("no known price", 2))
        assert await store.spent("aaaaaaaa") == 1.0
        now = 11 * day
        await append(Compacted(3, "summary", cost=0.25))
        # The end of a task it began is still its own to pay.
        await store.accept(session.id, Input("task t-1 ended", "task"), None, queue=20)
        await append(Reply("told", 4, cost=0.25))
        await store.accept(session.id, Input("hi", payer="bbbbbbbb"), None, queue=20)
        await append(Reply("another's", 5, cost=4.0))
        with pytest.raises(StaleClaim):
            await store.append(session.id, Reply("too late", 5, cost=8.0), claim.generation - 1)
        assert [await store.spent("aaaaaaaa", since) for since in (0, 10, 11, 12)] == [1.5, 1.5, 0.5, 0.0]
    async with open_store(tmp_path) as store:
        assert (await store.spent("aaaaaaaa"), await store.spent("bbbbbbbb", 11)) == (1.5, 4.0)


async def test_people_are_all_who_have_a_session_or_a_key_latest_active_first(tmp_path: Path) -> None:
    second = 1_000_000
    times = iter(number * 60 * second for number in range(1, 100))
    async with open_store(tmp_path, clock=lambda: next(times)) as store:
        assert await store.people() == []
        for person in ("ann", "ann", "bob"):
            await store.create(person, "", "/folder")
        for id, name, person in (("aaaaaaaa", "one", "cy"), ("bbbbbbbb", "two", "ann"), ("cccccccc", "three", "ann")):
            await store.create_key(id, key_spec(name, person), b"1")
        await store.revoke_key("cccccccc")
        await store.touch_key("bbbbbbbb")
        people = await store.people()
    assert people == [Person("ann", 2, 1, 480_000), Person("bob", 1, 0, 180_000), Person("cy", 0, 1, 0)]


async def test_every_active_key_has_a_name_of_its_own(store: KeyStore) -> None:
    first = await store.create_key("aaaaaaaa", key_spec(), b"1")
    with pytest.raises(Refused, match="a key named 'laptop' already exists"):
        await store.create_key("bbbbbbbb", key_spec(person="bob"), b"2")
    assert await store.revoke_key(first.id)
    second = await store.create_key("bbbbbbbb", key_spec(), b"2")
    with pytest.raises(Refused, match="id 'bbbbbbbb' already"):
        await store.create_key("bbbbbbbb", key_spec("phone"), b"3")
    assert [(key.id, bool(key.revoked)) for key in await store.list_keys()] == [(first.id, True), (second.id, False)]


async def test_of_many_keys_created_with_one_name_at_once_one_gets_it(store: KeyStore) -> None:
    refused: list[str] = []

    async def create(number: int) -> None:
        try:
            await store.create_key(f"aaaaaaa{'bcdefghij'[number]}", key_spec(), b"1")
        except Refused as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(create, number)
    assert (len(refused), len(await store.list_keys())) == (8, 1)


async def test_a_revoked_key_stays_revoked(store: KeyStore) -> None:
    made = await store.create_key("aaaaaaaa", key_spec(), b"1")
    assert await store.revoke_key(made.id)
    revoked = await store.find_key(made.id)
    assert revoked is not None
    assert revoked.revoked > 0
    assert (await store.revoke_key(made.id), await store.revoke_key("nosuchid")) == (False, False)
    assert await store.find_key(made.id) == revoked


async def test_the_use_of_a_key_is_recorded_once_a_minute(tmp_path: Path) -> None:
    minute = 60_000_000
    times = iter([minute, 2 * minute, 3 * minute - 1000, 3 * minute, 2 * minute])
    async with open_store(tmp_path, clock=lambda: next(times)) as store:
        made = await store.create_key("aaaaaaaa", key_spec(), b"1")
        seen: list[int] = []
        for _ in range(4):
            await store.touch_key(made.id)
            key = await store.find_key(made.id)
            seen.append(key.used if key else -1)
        assert (made.used, seen) == (0, [120_000, 120_000, 180_000, 120_000])


@pytest.mark.promise("S2")
async def test_a_key_is_256_random_bits_of_which_a_digest_is_stored(store: KeyStore) -> None:
    made = [await make_key(store, key_spec(f"k{number}")) for number in range(50)]
    parts = [split_key(text) for _, text in made]
    assert [part and part[0] for part in parts] == [key.id for key, _ in made]
    secrets = {part[1] for part in parts if part}
    assert (len(secrets), {len(bytes.fromhex(secret)) for secret in secrets}) == (50, {32})
    assert all(part and secret_matches(part[1], key.digest) for part, (key, _) in zip(parts, made, strict=True))
    assert not secret_matches("0" * 64, made[0][0].digest)


@pytest.mark.parametrize(
    "bad", [key_spec(""), key_spec(" x"), key_spec("a\nb"), key_spec("x" * 61), key_spec(person="")]
)
async def test_a_key_without_a_plain_name_is_refused(store: KeyStore, bad: KeySpec) -> None:
    with pytest.raises(Refused):
        await make_key(store, bad)
    with pytest.raises(Refused):
        await make_key(store, KeySpec("x", "ann", ()))
    with pytest.raises(Refused):
        await make_key(store, KeySpec("x", "ann", ("chat",), rate=0))
    assert await store.list_keys() == []


@pytest.mark.promise("S2")
async def test_the_first_key_is_created_once_and_only_its_owner_can_read_it(opener: Opener, tmp_path: Path) -> None:
    async with opener(tmp_path) as store:
        text = await ensure_key(tmp_path, store)
        assert text
        assert await ensure_key(tmp_path, store) is None
        (key,) = await store.list_keys()
        assert key.spec == KeySpec("first", "owner", ("admin",))
        path = first_key_file(tmp_path)
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (text + "\n", 0o600)
        await store.revoke_key(key.id)
        assert await ensure_key(tmp_path, store) is None
    secret = text.rpartition("_")[2].encode()
    holding = [each.name for each in tmp_path.rglob("*") if each.is_file() and secret in each.read_bytes()]
    assert holding == ["api_key"]
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir() if each.is_file()}
    assert set(modes.values()) == {0o600}, modes


async def test_a_first_key_that_was_written_but_not_stored_is_created_again(store: KeyStore, tmp_path: Path) -> None:
    """As after a kill between the two writes."""
    first_key_file(tmp_path).write_text("ork_aaaaaaaa_" + "0" * 64)
    text = await ensure_key(tmp_path, store)
    assert first_key_file(tmp_path).read_text().strip() == text


@pytest.mark.parametrize("page", ["first", "keys"])
async def test_a_damaged_store_is_recovered_without_keys_and_says_so(tmp_path: Path, page: str) -> None:
    async with open_store(tmp_path) as store:
        await store.create("ann", "garden", "/folder")
        old = await ensure_key(tmp_path, store)
    with (tmp_path / "store.db").open("r+b") as file:
        content = file.read()
        torn = content.index(b"first") // PAGE if page == "keys" else 0
        file.seek(torn * PAGE)
        file.write(b"rubbish!" * (PAGE // 8))
    async with open_store(tmp_path) as store:
        assert "The store was damaged" in store.notices[0]
        assert LOST_KEYS in store.notices
        assert (len(await store.list("ann")), await store.list_keys()) == (1, [])
        assert await store.check() == []
        assert await ensure_key(tmp_path, store) not in (None, old)


@pytest.mark.promise("S2")
def test_secrets_are_compared_only_in_constant_time() -> None:
    """By construction: digests are compared by `hmac.compare_digest` alone."""
    files = [
        SRC / "core/store_port.py",
        SRC / "store/keys.py",
        SRC / "channels/http/middleware.py",
    ]
    compared = [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and {"secret", "digest", "digest_of", "text"} & _names(node)
    ]
    assert compared == [f"keys.py:{_line(SRC / 'store/keys.py', 'text != text.strip()')}"] * 2  # a name, and its length
    assert "return hmac.compare_digest(digest_of(secret), digest)" in (SRC / "store/keys.py").read_text()
    assert secret_matches("a", digest_of("a"))


def _names(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _line(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)
