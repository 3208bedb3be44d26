"""Memories as the person would state them: labels of scenes, turned from the third person to the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from synth.everyday.scenes import SceneFact
from synth.offline.grammar import Node, parse

_WORDS = range(4, 33)
_ADVERBS = (
    r"(?:(?:still|now|often|always|never|also|once|only|just|hardly|even|again|so|already|therefore|at last|no longer|"
    r"sometimes|rarely|soon|ever|\w+ly),? )*"
)
_PERSON = re.compile(
    r"(?:(?P<before>[\w{}']+)(?P<mark>[,:;]?) )?(?P<who>\{(?:name|they)\})"
    rf"(?: (?P<adverbs>{_ADVERBS})(?P<verb>[a-z]+(?:n't)?))?"
)
_NEXT_VERB = re.compile(
    rf"(?:\band|\bbut|\bor|\bthen|\byet) {_ADVERBS}(?P<verb>is|[a-z]+(?:[^s\W]s|n't))\b"
    r"(?P<object> (?:it|them|the|a|an|every|not|out|up|him|her|his|my|me|myself)\b)?"
)
_AUXILIARIES = frozenset(["will", "would", "can", "could", "did", "should", "must", "may", "might", "cannot", "was"])
_SAME = re.compile(
    r"(?:had|was|did|would|could|should|ca)(?:n't)?|wo(?:n't)|will|can|cannot|must|may|might|.*ed|got|gave|found|felt|went|took|"
    r"lost|made|told|spent|saw|became|came|bought|chose|said|met|fell|left|kept|put|cut|let|hit|set|read|ran|won|wrote|broke|"
    r"drove|flew|grew|knew|held|heard|led|paid|sold|sent|sat|slept|spoke|stood|taught|thought|threw|understood|woke|wore|began|"
    r"brought|built|caught|dealt|drew|drank|ate|forgot|forgave|hid|hurt|laid|lay|lent|quit|rode|rose|sang|sank|shook|shot|shut|"
    r"swam|tore|dug|fought|froze|hung|stuck|swept|wept|bent|bet|learnt|meant|split|spread|stole|swung|withdrew"
)
"""Verbs that are the same in both persons."""
_IRREGULAR = {"is": "am", "has": "have", "does": "do", "goes": "go", "lies": "lie", "dies": "die", "ties": "tie",
              "isn't": "am not", "hasn't": "haven't", "doesn't": "don't"}  # fmt: skip
_NO_VERBS = frozenset(["this", "his", "its", "as", "us", "perhaps", "always", "less", "plus", "thus", "was", "others"])
_TAKES_OBJECT = re.compile(
    r"(?:[^s]s|ed|had|made|gave|give|left|leave|brought|make|let|keep|told|help|to|for|with|from|of|by|at|on|in|than|about)$"
)
"""How a word ends before the person as an object."""
_OTHER_SUBJECT = re.compile(
    r"\b(?:that|who|whose|which|because|as|since|when|whenever|where|if|while|until|before|after|how|what|why|so|than)\b|\{"
)
_NOT_TURNED = re.compile(
    r"\{name\}(?:,? and |,? who|, an? |, no |, \{|$)|\{(?:name|they)\}-|(?<!\{)\b[Tt]he(?:y|m|ir)\b|, (?:is|has|does)\b"
    r"|\b(?:and|of|is|has|does|am|had|wish|thinks|[Ww]ith) \{name\}(?!')|\b(?:the two|[Bb]oth|neither|sibling)\b"
    r"|[^}], whos?e?\b"
)
"""Speaking of several people together, or with the person where a pronoun would not do."""
_CONTRACTED = ((re.compile(r"\bI am(?= not\b)"), "I'm"), (re.compile(r"\bI am(?= )"), "[I'm|I am]"),
               (re.compile(r"\bI have (?=(?:been|had|always|never|just|now|\w+ed)\b)"), "[I've|I have] "))  # fmt: skip
_OWN = {"{them}": "me", "{their}": "my", "{theirs}": "mine", "{themself}": "myself", "{name}'s": "my"}
_ALONE = re.compile(r"\bmy(?=[,.:;]| on\b)")
_RELATIVE = re.compile(
    r"(?<!my )(?<!the )(?<!an )(?<!a )\b(sister|brother|niece|nephew|cousin|flatmate|godchild|boss) (?=\{)"
)
_OF_THE_PERSON = re.compile(r"\[?(?:I|My)\b")
_DATE = re.compile(r"\{((?:ago|ahead|recent)[0-9]*)_date\}")


class StatedLabel(NamedTuple):
    """What the person says, and the label that keeps it word for word; both without alternatives but for contractions."""

    said: str
    label: str


@cache
def statements(fact: SceneFact) -> tuple[StatedLabel, ...]:
    """How the person can state a fact; those that begin with the person where there are any, as people talk."""
    found = [
        StatedLabel(said, text)
        for label in fact.label
        for text in _expanded(parse(label))
        if (said := in_first_person(text))
    ]
    return tuple([one for one in found if _OF_THE_PERSON.match(one.said)] or found)


def in_first_person(label: str) -> str:
    """A label without alternatives as the person says it; empty if it cannot be turned by rules of thumb.

    ``{name} likes {dish}, as {they} is from {city}.`` becomes ``I like {dish}, as [I'm|I am] from {city}.``
    """
    if _NOT_TURNED.search(label):
        return ""
    text = label
    for slot, word in _OWN.items():
        text = text.replace(slot, word)
    parts, end = [], 0
    for found in _PERSON.finditer(text):
        parts.append(text[end : found.start("who")])
        end = found.end("who")
        before, verb = ("" if found["mark"] else found["before"] or ""), found["verb"] or ""
        known = _SAME.fullmatch(verb) or re.search(r"[^su]s$|n't$", verb)
        if before in _AUXILIARIES:
            parts.append("I")
        elif found["who"] == "{name}" and before and not known:
            parts.append("me")
        elif (found["who"] == "{name}" and _TAKES_OBJECT.search(before)) or not known:
            return ""
        else:
            parts.append(f"I {found['adverbs']}{_first(verb)}")
            end = found.end("verb")
    text = _coordinated("".join([*parts, text[end:]]))
    text = _ALONE.sub("mine", _RELATIVE.sub(r"my \1 ", text[:1].lower() + text[1:]))
    text = text[:1].upper() + text[1:]
    for pattern, spoken in _CONTRACTED:
        text = pattern.sub(spoken, text)
    return _DATE.sub(r"{\1}", text) if len(text.split()) in _WORDS else ""


def _coordinated(text: str) -> str:
    """The text with the verbs after ``and`` in the first person too; empty if it is not plain whose they are."""
    parts, end = [], 0
    for found in _NEXT_VERB.finditer(text):
        verb, subject = found["verb"], re.search(r".*\bI\b", text[: found.start()])
        if verb in _NO_VERBS or not subject:
            continue
        if not (verb in _IRREGULAR or found["object"]) or _OTHER_SUBJECT.search(text, subject.end(), found.start()):
            return ""
        parts += [text[end : found.start("verb")], _first(verb)]
        end = found.end("verb")
    return "".join([*parts, text[end:]])


def _first(verb: str) -> str:
    """A verb in the first person."""
    if verb in _IRREGULAR:
        return _IRREGULAR[verb]
    if _SAME.fullmatch(verb) or not verb.endswith("s"):
        return verb
    if re.search(r"[^aeiou]ies$", verb):
        return verb[:-3] + "y"
    return verb[:-2] if re.search(r"(?:ch|sh|ss|x|zz|o)es$", verb) else verb[:-1]


def _expanded(node: Node) -> Iterator[str]:
    """All texts of a label with alternatives, slots unfilled."""
    if node.kind == "text":
        yield node.text
    elif node.kind == "slot":
        yield f"{{{node.text}}}"
    elif node.kind == "choice":
        for part in node.parts:
            yield from _expanded(part)
    else:
        yield from map("".join, product(*(list(_expanded(part)) for part in node.parts)))
