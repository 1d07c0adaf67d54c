"""A task group for what goes on beside its body: it ends with the body, and the body's error leaves as it is."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import anyio
from anyio.abc import TaskGroup


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
        if len(several.exceptions) != 1:
            raise
        raise several.exceptions[0] from several.exceptions[0].__cause__


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
