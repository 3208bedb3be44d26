"""Errors as ``application/problem+json`` (RFC 9457): one sentence for whoever called, nothing of what lies inside."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deltamem.errors import (
    ConflictError,
    DeltaMemError,
    EmbedderUnavailableError,
    LLMError,
    NotFoundError,
    StorageError,
)
from deltamem.text import shortened

logger = logging.getLogger(__name__)

NOT_FOUND = "there is nothing here by this name"
"""The one sentence of every 404, so that what belongs to others cannot be told from what does not exist."""
TOO_LARGE = "the body is larger than this server takes"
_LONGEST = 400
_SENTENCES = {
    400: "the body cannot be read: expected JSON in UTF-8",
    405: "this path does not take this method",
    413: TOO_LARGE,
}
"""Of exceptions that FastAPI raises."""


class Problem(HTTPException):
    """An answer that is an error; an HTTPException, because FastAPI lets no other pass while it reads a body."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """Say what is wrong in one sentence."""
        super().__init__(status, shortened(detail, _LONGEST), dict(headers or {}))

    @property
    def title(self) -> str:
        """The name of the status."""
        return HTTPStatus(self.status_code).phrase


class ProblemRecord(BaseModel):
    """An error."""

    type: str = Field("about:blank")
    title: str
    status: int
    detail: str


def not_found() -> Problem:
    """The answer to whatever is not there, or is not for this key."""
    return Problem(404, NOT_FOUND)


def problem_of(error: Exception) -> Problem:
    """What an exception means to the caller; routes may word it differently, see `Mem0Route`."""
    match error:
        case Problem():
            return error
        case NotFoundError():
            return not_found()
        case ConflictError():
            return Problem(409, str(error))
        case LLMError():
            return Problem(503, "the model cannot be reached", {"Retry-After": "30"})
        case StorageError():
            # Whoever runs the server has to act; whoever calls may come back, and learns nothing of the machine.
            logger.error("the store fails: %s", error)
            return Problem(503, "the memory cannot be read or written for now", {"Retry-After": "5"})
        case EmbedderUnavailableError():
            return Problem(503, "the embedding model cannot be loaded")
        case DeltaMemError():
            return Problem(400, str(error))
        case ClientDisconnect():
            return Problem(400, "the client left before its request was there")  # nobody reads it but the log
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            detail = _SENTENCES.get(error.status_code, str(error.detail))
            return not_found() if error.status_code == 404 else Problem(error.status_code, detail, error.headers)
    # Without the message: it may quote what somebody said.
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("a request failed by a defect: %s\n%s", type(error).__name__, frames)
    return Problem(500, "the server failed; this is a defect of the server")


def _invalid(error: RequestValidationError) -> Problem:
    """Pydantic's first complaint, in one sentence that does not repeat the value."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Problem(400, "the body is no JSON")
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = str(first["msg"])
    if first["type"] in ("model_attributes_type", "dict_type") and first["loc"] == ("body",):
        message = "expected a JSON object with the content type application/json"
    if first["type"] == "extra_forbidden":
        message = "there is no such field"
    return Problem(422, f"{where}: {message}" if where else message)


def render(problem: Problem) -> Response:
    """The response."""
    body = {"type": "about:blank", "title": problem.title, "status": problem.status_code, "detail": problem.detail}
    # ASCII: a sentence may quote text that is not valid Unicode.
    return Response(json.dumps(body), problem.status_code, headers=problem.headers, media_type="application/problem+json")


async def handle(request: Request, error: Exception) -> Response:
    """Answer an exception; the handler of every kind of them."""
    problem = problem_of(error)
    path = getattr(request.scope.get("route"), "path", "")
    if problem.status_code == 405 and (allowed := request.app.methods(path)):
        problem.headers = {"Allow": allowed}  # the router knows only the methods of one of the path's routes
    return render(problem)


def install(app: FastAPI) -> None:
    """Answer all errors of an application as problems."""
    for kind in (Problem, DeltaMemError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI documents the errors of a route, which has some statuses beyond those that every route may have."""
    schema = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemRecord"}}}
    every = (400, 401, 403, 404, 413, 422, 429, 503)
    return {status: {"description": HTTPStatus(status).phrase, "content": schema} for status in sorted({*every, *statuses})}
