"""Operations: methods of `AgentApi` that are declared once and can be called in another process.

An operation takes and returns values that msgspec can encode. Its signature is the format of its arguments on the wire.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, Literal, Protocol, TypeVar, cast, get_type_hints

import msgspec

Access = Literal["read", "full"]
"""What a process may do in a home that another one owns: look things up, or everything."""
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
_IMAGES = "images"
"""The parameter whose values are sent as they are, after the other arguments."""


class Operation:
    """One operation: its name, who may call it, and how its arguments and its result are encoded."""

    def __init__(self, function: Callable[..., Any], access: Access, *, reports_change: bool) -> None:
        self.name = function.__name__
        self.access: Access = access
        self.reports_change = reports_change
        """Whether it returns True when it changed something. Called again, it may see its own change."""
        self._function = function
        self._signature = inspect.signature(function)

    @cached_property
    def _types(self) -> Mapping[str, Any]:
        return get_type_hints(self._function)

    @cached_property
    def _parameters(self) -> type[msgspec.Struct]:
        fields = [
            (name, self._types[name], parameter.default)
            if parameter.default is not parameter.empty
            else (name, self._types[name])
            for name, parameter in self._signature.parameters.items()
            if name not in ("self", _IMAGES)
        ]
        return msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)

    def encode_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bytes, Sequence[bytes]]:
        """These arguments without defaults as JSON, and the images among them."""
        values = self._signature.bind(None, *args, **kwargs).arguments
        images = values.pop(_IMAGES, ())
        parameters = self._signature.parameters
        return msgspec.json.encode(
            {name: value for name, value in values.items() if name != "self" and value != parameters[name].default}
        ), images

    def decode_args(self, content: bytes | msgspec.Raw, images: Sequence[bytes] = ()) -> dict[str, Any]:
        """Raises ValueError for what the operation does not declare."""
        args = msgspec.structs.asdict(msgspec.json.decode(content, type=self._parameters))
        return {**args, _IMAGES: images} if images else args

    def decode_result(self, content: bytes | msgspec.Raw) -> Any:
        return msgspec.json.decode(content, type=self._types["return"])


OPERATIONS: dict[str, Operation] = {}


class Forwarder(Protocol):
    async def forward(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Have an operation done elsewhere."""
        ...


def operation(access: Access, *, reports_change: bool = False) -> Callable[[F], F]:
    """Declare a method as an operation. Where a class does not override it, it calls `forward`."""

    def decorate(function: F) -> F:
        declared = OPERATIONS[function.__name__] = Operation(function, access, reports_change=reports_change)

        @wraps(function)
        async def forward(self: Forwarder, *args: Any, **kwargs: Any) -> Any:
            return await self.forward(declared, args, kwargs)

        return cast("F", forward)

    return decorate
