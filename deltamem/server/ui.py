"""The page of the server, ``/ui``: the viewer of ``deltamem view`` over the native routes, with a key that is typed in."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from deltamem.page import live_page


def router() -> APIRouter:
    """The routes. They hold nothing that somebody said, so they need no key."""
    routes = APIRouter(include_in_schema=False)
    routes.get("/ui")(page)
    routes.get("/ui/")(without_slash)
    return routes


@cache
def _page() -> tuple[str, dict[str, str]]:
    text, policy = live_page()
    return text, {
        # The page has the same policy in itself, where it cannot say who may put it into a frame.
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


async def page() -> HTMLResponse:
    """The page."""
    text, headers = _page()
    return HTMLResponse(text, headers=headers)


async def without_slash() -> RedirectResponse:
    """The page asks for what lies beside it, so that it works under any path of a proxy."""
    return RedirectResponse("../ui")
