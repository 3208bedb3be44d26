"""The page to look at a memory with: one file with an export in it, or the page of a running server."""

from __future__ import annotations

import hashlib
import io
from base64 import b64encode
from importlib import resources
from string import Template

from deltamem.journal.owner import OwnerJournal
from deltamem.journal.transfer import export_owner


def memory_page(journal: OwnerJournal) -> str:
    """The page of one owner, with the owner's export in it.

    Raises:
        DeltaMemError: If the journal cannot be read.
    """
    export = io.StringIO()
    export_owner(journal, export)
    return page(export.getvalue())


def page(data: str, script: str | None = None) -> str:
    """The page around the JSON lines that it shows; it can be opened from disk.

    The script reads them and calls ``show`` of the viewer; by default they are an owner's export.
    """
    return _assembled(data, part("memory.js") if script is None else script, "")[0]


def live_page() -> tuple[str, str]:
    """The page that asks the server it comes from, and the Content-Security-Policy to send with it."""
    return _assembled("", part("memory.js") + part("live.js"), "; connect-src 'self'")


def _assembled(data: str, source: str, further: str) -> tuple[str, str]:
    script, style = part("page.js") + source, part("page.css")
    # Only this script and this style, and nothing is loaded or sent but what is named.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    policy += further
    fields = {"policy": policy, "style": style, "script": script, "data": embedded(data)}
    return Template(part("index.html")).substitute(fields), policy


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def embedded(json_text: str) -> str:
    """JSON as it may stand in a ``<script type="application/json">``: no text in it can end the element."""
    return json_text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
