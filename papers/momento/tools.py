"""The tools as models call them: by name, with JSON arguments that are checked, for a text.

A result is a JSON text, or begins with ``Error: `` or ``PolicyViolationError: ``, and then nothing was changed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from deltamem.errors import DeltaMemError
from papers.momento import service
from papers.momento.policies import CallError, DatabaseFailedError, PolicyViolationError
from papers.momento.world import World

ERROR, VIOLATION = "Error: ", "PolicyViolationError: "
"""How the result of a failed call begins."""


def failed(result: str) -> bool:
    """Whether a call changed nothing because it could not be carried out or was not allowed."""
    return result.startswith((ERROR, VIOLATION))


@dataclass(frozen=True)
class Tool:
    """A function of `papers.momento.service`, with what its signature says of its arguments."""

    run: Callable[..., Any]
    arguments: type[BaseModel]

    @property
    def name(self) -> str:
        """As models call it."""
        return self.run.__name__

    def schema(self) -> dict[str, Any]:
        """As models are shown it, in the OpenAI protocol."""
        made = self.arguments.model_json_schema()
        shown = _plain(made.get("properties", {}), made.get("$defs", {}))
        parameters = {"type": "object", "properties": shown, "required": made.get("required", [])}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.run.__doc__, "parameters": parameters},
        }


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Pydantic's schema without titles, references, and the null of what may be left out."""
    if isinstance(schema, list):
        return [_plain(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = schema | next(one for one in schema["anyOf"] if one != {"type": "null"})
    return {
        key: _plain(value, definitions)
        for key, value in schema.items()
        if key not in ("title", "anyOf") and (key, value) != ("default", None)
    }


def _arguments(function: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is one.empty else one.default)
        for one in list(inspect.signature(function).parameters.values())[1:]
    }
    return create_model(function.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


TOOLS: dict[str, Tool] = {
    name: Tool(function, _arguments(function))
    for name, function in vars(service).items()
    if inspect.isfunction(function) and function.__module__ == service.__name__ and not name.startswith("_")
}
"""All tools by name."""


def call(world: World, name: str, arguments: Mapping[str, Any]) -> str:
    """Carry out a call as an agent makes it; never raises for what the agent did.

    Raises:
        DatabaseFailedError: If the database has gone away.
    """
    tool = TOOLS.get(name)
    if tool is None:
        return f"{ERROR}there is no tool {name[:40]!r}"
    try:
        given = _checked(tool, arguments)
        with world.database.transaction():
            try:
                return json.dumps(tool.run(world, **given), default=str, ensure_ascii=False)
            except PolicyViolationError as error:  # that a membership was found to be over stays, as in the benchmark
                return f"{VIOLATION}{error}"
            except CallError as error:
                return f"{ERROR}{error}"
    except DatabaseFailedError:
        raise
    except (CallError, DeltaMemError) as error:
        return f"{ERROR}{error}"


def _checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        model = tool.arguments.model_validate({key: value for key, value in arguments.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise CallError(f"{tool.name} has no argument {where[:40]!r}") from None
        raise CallError(f"{tool.name} needs {where}" if first["type"] == "missing" else f"{where}: {first['msg']}") from None
    for name in model.model_fields_set:
        _check_storable(name, getattr(model, name))
    return dict(model)


def _check_storable(name: str, value: Any) -> None:
    """Refuse what JSON allows but databases do not hold."""
    if isinstance(value, str) and any(one == "\0" or "\ud800" <= one <= "\udfff" for one in value):
        raise CallError(f"{name} holds characters that no text has")
    if isinstance(value, int | float) and not -(2**31) <= value < 2**31:  # nor is NaN
        raise CallError(f"{name} is out of range")
    for one in value if isinstance(value, list) else ():
        _check_storable(name, one)
    for key, one in value if isinstance(value, BaseModel) else ():
        _check_storable(f"{name}.{key}", one)
