"""The page around its data: what may run in it, and how it is put together."""

import base64
import hashlib
import json
import re

from page_cases import Page

from deltamem.page import embedded, page, part


def test_only_its_own_script_and_style_may_run_and_nothing_is_loaded() -> None:
    made = Page(page('{"owner": "ann", "entries": 0, "memories": 0, "dialogues": 0}\n'))
    [policy] = [tag["content"] or "" for name, tag in made.tags if name == "meta" and "http-equiv" in tag]
    allowed = dict(directive.strip().partition(" ")[::2] for directive in policy.split(";"))
    style = made.source.partition("<style>")[2].partition("</style>")[0]
    for kind, text in (("script-src", made.scripts[1]), ("style-src", style)):
        assert allowed.pop(kind) == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert set(allowed.values()) == {"'none'"} and "default-src" in allowed
    assert made.count("script") == 2, "of which one is data"
    assert not any("style" in attributes for _, attributes in made.tags)
    made.check_self_contained()


def test_the_script_sets_texts_and_never_markup() -> None:
    script = part("page.js") + part("memory.js")
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    assert not re.findall(markup + r"|\beval\b|Function\(|\bfetch\b", script)
    live = part("live.js")
    assert not re.findall(markup + r"|\beval\b|Function\(", live) and live.count("fetch(") == 1
    assert "</script" not in script + live and "<!--" not in script + live


def test_no_text_ends_the_element_that_it_is_embedded_in() -> None:
    texts = ["</script>", "</SCRIPT >", "<!--<script>", "a < b", "\u2028\u2029", "$data ${style} $$"]
    line = json.dumps(texts, ensure_ascii=False)
    assert "<" not in embedded(line) and json.loads(embedded(line)) == texts
    made = Page(page(line))
    assert json.loads(made.scripts[0]) == texts, "what looks like a field of the template stays as it is"
