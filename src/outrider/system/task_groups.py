"""Task groups whose errors arrive as they were raised, not wrapped in an exception group."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar, cast

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")


@contextmanager
def unwrap_errors() -> Generator[None]:
    """Raise the one error inside an exception group in place of the group.

    Several errors of the same type and text count as one. A group of different errors is raised as it is.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error = _single_error(group)
        if error is group:
            raise
        raise error from error.__cause__


@asynccontextmanager
async def background_group() -> AsyncGenerator[TaskGroup]:
    """A task group whose tasks are cancelled when the body ends, in whatever way. They must not raise errors."""
    with unwrap_errors():
        async with anyio.create_task_group() as group:
            try:
                yield group
            finally:
                group.cancel_scope.cancel()


async def first_of(*functions: Callable[[], Awaitable[T]]) -> T:
    """Run these at the same time, cancel the rest when one returns, and return its result."""
    results: list[T] = []

    async def run(function: Callable[[], Awaitable[T]]) -> None:
        results.append(await function())
        group.cancel_scope.cancel()

    with unwrap_errors():
        async with anyio.create_task_group() as group:
            for function in functions:
                group.start_soon(run, function)
    return results[0]


def _single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error inside an exception group, or the group itself when there are several."""
    if len({(type(error), str(error)) for error in group.exceptions}) != 1:
        return group
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _single_error(cast("BaseExceptionGroup[BaseException]", error))
    return error
