"""Requests generated from the OpenAPI document, sent to a real `outrider up`: responses match it, and no bug shows."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.core.failures import FailureGroup

from tests.journey.support import PATIENCE
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import begin, caller, following, say, up

EXAMPLES = {GenerationMode.POSITIVE: 0.2, GenerationMode.NEGATIVE: 0.05}
"""Requests for each operation, as a share of the examples of the profile. Invalid ones take long to generate."""
CHECKS: list[Any] = [
    getattr(checks, name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]
ANSWERED = {
    "GET /health",
    "GET /metrics",
    "POST /v1/sessions",
    "POST /v1/sessions/{id}/inputs",
    "GET /v1/sessions/{id}/entries",
    "GET /v1/sessions/{id}/events",
    "DELETE /v1/sessions/{id}",
    "GET /v1/tasks/{id}/output",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
}
"""Operations of which at least one generated request must succeed, or too little is checked."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "model": "outrider"},
    "/v1/responses": {"input": "hello", "model": "outrider", "previous_response_id": None},
    "/v1/sessions": {"name": "known"},
    "/v1/sessions/{id}/inputs": {"text": "hello", "images": []},
}
"""Sensible bodies that replace generated ones, few of which would be accepted."""


class Api:
    """A running Outrider with its OpenAPI document, and resources whose ids can be used."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self._headers = {"Authorization": client.headers["authorization"]}
        loader: Any = schemathesis.openapi.from_url
        self.schema: Any = loader(f"{client.base_url}/openapi.json", headers=self._headers)
        self.task = self._begin_task()

    def operations(self) -> Iterator[Any]:
        for operation_result in self.schema.get_all_operations():
            yield operation_result.ok()

    def _begin_task(self) -> str:
        session = begin(self._client, "known")
        assert say(self._client, session, "run sleep 600 in the background").status_code == 202
        with following(self._client, session, until="idle") as events:
            assert [event["type"] for event in events][-1] == "idle"
        return self._client.get("/v1/tasks").json()["tasks"][0]["id"]

    def existing_id(self, operation: Any) -> str | None:
        """The id of an existing resource for a path that needs one; a new one where the request may delete it."""
        match operation.path.split("/")[2:3], operation.method:
            case ["sessions"], "delete":
                return begin(self._client, "to be deleted")
            case ["sessions"], _:
                return begin(self._client, "known")
            case ["responses"], _:
                return self._client.post("/v1/responses", json={"input": "hello"}).json()["id"]
            case ["tasks"], "get":
                return self.task
            case ["models"], _:
                return "outrider"
            case _:
                return None

    def send(self, case: Any, *, is_existing: bool, is_sensible: bool) -> int:
        """The status, after the response was checked against the document."""
        operation = case.operation
        if is_existing and "id" in case.path_parameters:
            case.path_parameters["id"] = self.existing_id(operation) or case.path_parameters["id"]
        if is_sensible and hasattr(case.body, "update"):
            case.body.update(BODIES.get(operation.path, {}))
        if operation.path.endswith("/events"):
            case.query = {**(case.query or {}), "until": "idle"}  # otherwise the stream does not end
        case.headers.update(self._headers)  # requests without a key are tested elsewhere
        answer = case.call(timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        return answer.status_code


@contextmanager
def serving(folder: Path) -> Generator[Api]:
    person = Person(folder)
    person.environ["OUTRIDER_MODEL"] = "practice"
    # A key without a rate limit, or nothing else would be tested.
    key = person.types("key", "create", "quick", "--scope", "admin", "--rate", "1000000").out.strip()
    with up(person) as running, caller(running.url, key) as client:
        api = Api(client)
        try:
            yield api
        finally:
            client.post(f"/v1/tasks/{api.task}/kill")
        assert client.get("/health").json()["status"] == "ok"


def check(api: Api, operation: Any, mode: GenerationMode) -> Counter[int]:
    """Send generated requests for one operation: the count of each status."""
    statuses: Counter[int] = Counter()

    @seed(20)
    @settings(
        max_examples=round(EXAMPLES[mode] * settings().max_examples),
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_existing=st.booleans(), is_sensible=st.booleans())
    def sent(case: Any, is_existing: bool, is_sensible: bool) -> None:
        statuses[api.send(case, is_existing=is_existing, is_sensible=is_sensible)] += 1

    sent()
    return statuses


@pytest.mark.needs("sandbox")
@pytest.mark.promise("L12")
def test_valid_requests_get_the_documented_responses(tmp_path: Path) -> None:
    with serving(tmp_path) as api:
        wrong: list[str] = []
        answered: set[str] = set()
        for operation in api.operations():
            try:
                statuses = check(api, operation, GenerationMode.POSITIVE)
            except FailureGroup as failures:
                wrong.append(f"{operation.label}: {failures}")
                continue
            if any(status < 300 for status in statuses):
                answered.add(operation.label)
    assert wrong == []
    assert ANSWERED - answered == set()


@pytest.mark.needs("sandbox")
@pytest.mark.promise("L7")
@pytest.mark.promise("L12")
def test_invalid_requests_are_refused_with_a_reason_or_ignored(tmp_path: Path) -> None:
    with serving(tmp_path) as api:
        wrong: list[str] = []
        for operation in api.operations():
            if not (operation.path_parameters or operation.query or operation.body):
                continue  # it has no invalid requests
            try:
                check(api, operation, GenerationMode.NEGATIVE)
            except FailureGroup as failures:
                wrong.append(f"{operation.label}: {failures}")
    assert wrong == []
