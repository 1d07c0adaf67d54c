"""A task group for what goes on beside its body: it ends with the body, and the body's error leaves as it is."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")


@asynccontextmanager
async def background_group() -> AsyncGenerator[TaskGroup]:
    """Its tasks are cancelled when the body ends, in whatever way. They must not raise errors of their own."""
    try:
        async with anyio.create_task_group() as group:
            try:
                yield group
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        error = unwrap_single(several)
        if error is several:
            raise
        raise error from error.__cause__


async def first_of(*functions: Callable[[], Awaitable[T]]) -> T:
    """Run these at the same time, cancel the rest when one returns, and return its result."""
    results: list[T] = []

    async def run(function: Callable[[], Awaitable[T]]) -> None:
        results.append(await function())
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for function in functions:
                group.start_soon(run, function)
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    return results[0]


def unwrap_single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error behind a task group's wrapping, when it is a single one, or the same one met several times."""
    if len({(type(error), str(error)) for error in group.exceptions}) != 1:
        return group
    error = group.exceptions[0]
    return (
        unwrap_single(cast("BaseExceptionGroup[BaseException]", error))
        if isinstance(error, BaseExceptionGroup)
        else error
    )
