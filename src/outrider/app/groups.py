"""What task groups make of errors, undone."""

from typing import cast


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
