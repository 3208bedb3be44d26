"""Reads HTML pages for tests: tags, text and scripts; checks that tags are closed in order."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})


class Page(HTMLParser):
    """The elements of a page, its text outside scripts, and its scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, tag: str, css_class: str | None = None) -> int:
        return sum(
            name == tag and (css_class is None or css_class in (attributes.get("class") or "").split())
            for name, attributes in self.tags
        )

    def check_self_contained(self) -> None:
        """Nothing is loaded from outside, no handler stands in an attribute, and ids are unique and resolve."""
        for tag, attributes in self.tags:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href", "xlink:href", "srcset", "action"):
                address = attributes.get(name) or "#"
                beside = tag == "a" and not re.search(r"[:/?\\]", address)  # a link loads nothing until it is followed
                assert address.startswith("#") or beside, (tag, name, address)
        assert "@import" not in self.source and not re.search(r"url\((?!#)", self.source)
        ids = [attributes["id"] for _, attributes in self.tags if attributes.get("id")]
        assert len(ids) == len(set(ids))
        targets = {
            (attributes["xlink:href"] or "").removeprefix("#") for _, attributes in self.tags if "xlink:href" in attributes
        }
        assert targets <= set(ids)


def embedded_data(page: Page) -> str:
    """The JSON lines that a page shows, as they were before they were embedded."""
    return "".join(
        json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":")) + "\n"
        for line in page.scripts[0].rstrip("\n").split("\n")
    )
