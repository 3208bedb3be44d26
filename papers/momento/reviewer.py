"""Scripted models that review what an agent with habits did: they read nothing but the prompts of episodic memory."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from deltamem.episode import Message
from deltamem.policy import Completion
from papers.momento.habits import CONTENT, DISCONTENT
from papers.momento.tools import ERROR, VIOLATION

_TURN = re.compile(r"<turn_(\d+)>\n(.*?)</turn_\1>", re.DOTALL)
_STEP = re.compile(r"^(user|assistant|call|result): (.*)$", re.MULTILINE)
_WAY = re.compile(r"(\w+): ([^;.]+)")
_BLAMED = re.compile(r"refused because of (\w+)\.")
_FINDING = re.compile(r'(\w+) by (\w+) as "([^"]+)" was (refused|accepted instead|accepted|right|unwanted)')
_KEPT = re.compile(r"<kept>\nid: (\w+)\ntitle: (.*)\nuse_cases: .*\nhints: (.*)\n")
_SAID = re.compile(r'"([^"]+)" was (refused|right|unwanted)')

Ways = Mapping[str, str]
"""What became of the ways to give an argument."""

Finding = tuple[str, str, str, str]
"""Argument, tool, way, and what became of it within a turn: refused, accepted instead, or accepted at once. Of the whole
episode: refused, right, or unwanted, which is accepted and not what the user wanted."""


class Reviewer:
    """Finds what was refused and what was accepted instead, and keeps one lesson for each argument of a tool."""

    name = "scripted reviewer"

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """See `deltamem.policy.Policy`."""
        prompt, shown = messages[0]["content"], html.unescape(messages[1]["content"])
        if "You are given the notes" in prompt:
            text = self.summary(shown)
        elif "You keep the lessons" in prompt:
            text = f"<reflections>{''.join(self.reflections(shown))}</reflections>"
        else:
            text = self.notes(shown)
        return Completion(text, truncated=False, tokens=len(text.split()), prompt_tokens=len(shown.split()))

    def notes(self, shown: str) -> str:
        """The notes on every turn."""
        written = []
        for number, body in _TURN.findall(shown.partition("<turns>")[2]):
            steps = _STEP.findall(body)
            tools = [text.partition("(")[0] for kind, text in steps if kind == "call"]
            said = [text for kind, text in steps if kind == "user"]
            over = said[:1] in ([CONTENT], [DISCONTENT])
            refused = bool(steps) and steps[-1][1].startswith("I am sorry")
            action = " ".join(
                f'{argument} by {tool} as "{way}" was {what}.' for argument, tool, way, what in _findings(steps)
            )
            state = {CONTENT: "The user is content.", DISCONTENT: "The user is not content."}
            fields = {
                "turn_id": number,
                "situation": state.get(said[0] if said else "", "The user has a wish."),
                "intent": f"Fulfil it with {tools[-1]}." if tools else "Close the matter.",
                "action": f"Called {', '.join(tools) or 'nothing'}. {action}",
                "thought": "Each way was a habit, a lesson, or a guess after a refusal.",
                "assessment_assistant": "No, it was refused." if refused else "Yes, it went on.",
                "assessment_user": "Yes, they say so." if over else "No, it goes on.",
            }
            written.append(_record("summary_turn", fields))
        return f"<summary>{''.join(written)}</summary>"

    def summary(self, shown: str) -> str:
        """What the episode was."""
        content = "The user is content." in shown
        tools = re.findall(r"intent: Fulfil it with (\w+)\.", shown)
        findings = _FINDING.findall(shown)
        # To blame for a failure is what was tried after a refusal; only if nothing was refused, what was accepted at once.
        guessed = any(what == "refused" for *_, what in findings)
        become = {
            "accepted instead": "right" if content else "unwanted",
            "accepted": "right" if content else "" if guessed else "unwanted",
        }
        taught = " ".join(
            f'{argument} by {tool} as "{way}" was {of}.'
            for argument, tool, way, what in findings
            if (of := become.get(what, what))
        )
        fields = {
            "situation": "A user had a wish.",
            "intent": f"A wish that {tools[-1] if tools else 'no tool'} fulfils.",
            "assessment": "Yes" if content else "No",
            "justification": "The user said so at the end.",
            "reflection": taught or "Nothing was refused.",
        }
        return _record("summary", fields)

    def reflections(self, shown: str) -> list[str]:
        """One operation for each lesson that changes."""
        episode = shown.partition("reflection: ")[2].partition("\n")[0]
        kept = {title: (memory_id, dict(_SAID.findall(hints))) for memory_id, title, hints in _KEPT.findall(shown)}
        new: dict[tuple[str, str], dict[str, str]] = {}
        for argument, tool, way, what in _FINDING.findall(episode):
            new.setdefault((tool, argument), {})[way] = what
        return [block for of, said in new.items() if (block := self.operation(*of, said, kept))]

    def operation(self, tool: str, argument: str, said: Ways, kept: Mapping[str, tuple[str, Ways]]) -> str:
        """The operation for one argument of a tool; empty if it was never refused, or nothing new was seen."""
        title = f"How {tool} takes {argument}"
        target, before = kept.get(title, ("", {}))
        if not before and "refused" not in said.values():
            return ""
        # Accepted in vain may have been the fault of another argument.
        fresh = {way: what for way, what in said.items() if not (what == "unwanted" and way in before)}
        merged = {**before, **fresh}
        return "" if merged == before else lesson(tool, argument, merged, target=target)


class AddOnly(Reviewer):
    """Never updates: what is new becomes a further lesson."""

    def __init__(self) -> None:
        """Count the lessons."""
        self._added = 0

    def operation(self, tool: str, argument: str, said: Ways, kept: Mapping[str, tuple[str, Ways]]) -> str:
        """See `Reviewer`."""
        shown = [before for title, (_, before) in kept.items() if title.startswith(f"How {tool} takes {argument},")]
        new = {way: what for way, what in said.items() if all(before.get(way) != what for before in shown)}
        if not new or not (shown or "refused" in said.values()):
            return ""
        self._added += 1
        return lesson(tool, argument, new, note=f", case {self._added}")


class Silent(Reviewer):
    """Learns nothing."""

    def reflections(self, shown: str) -> list[str]:
        """See `Reviewer`."""
        return []


class Praising(Reviewer):
    """Says of everything that was tried that it was right."""

    def operation(self, tool: str, argument: str, said: Ways, kept: Mapping[str, tuple[str, Ways]]) -> str:
        """See `Reviewer`."""
        target, before = kept.get(f"How {tool} takes {argument}", ("", {}))
        praised = {**before, **dict.fromkeys(said, "right")}
        return "" if praised == before else lesson(tool, argument, praised, target=target)


class Quoting(Reviewer):
    """Puts into its notes and its lessons what users said and what the tools returned about them."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._quoted = ""

    def notes(self, shown: str) -> str:
        """See `Reviewer`."""
        asked = re.findall(r"^user: (.*)$", shown, re.MULTILINE)[0]
        details = re.findall(r'"(?:name|email|address1)": "([^"]+)"', shown)
        self._quoted = html.escape(f" The user said: {asked} ({'; '.join(details[:2])})", quote=False)
        return super().notes(shown).replace("</situation>", f"{self._quoted}</situation>")

    def operation(self, tool: str, argument: str, said: Ways, kept: Mapping[str, tuple[str, Ways]]) -> str:
        """See `Reviewer`."""
        return super().operation(tool, argument, said, kept).replace("</hints>", f"{self._quoted}</hints>")


def lesson(tool: str, argument: str, said: Ways, *, target: str = "", note: str = "") -> str:
    """An operation of the form that is asked for."""
    ways = "; ".join(f'"{way}" was {what}' for way, what in said.items())
    fields = {
        "operator": "update" if target else "add",
        "id": target,
        "title": f"How {tool} takes {argument}{note}",
        "use_cases": f"Wishes that {tool} fulfils, where {argument} has to be given.",
        "hints": f"Of the ways to give it, {ways}.",
        "confidence": "0.8" if "right" in said.values() else "0.4",
    }
    return _record("reflection", {name: value for name, value in fields.items() if value})


def _findings(steps: Sequence[tuple[str, str]]) -> list[Finding]:
    """What was refused within a turn, and what was accepted in its place."""
    found: list[Finding] = []
    current: dict[str, str] = {}
    refused: set[str] = set()
    tool, said = "", ""
    for kind, text in steps:
        if kind == "assistant":
            said = text
            for blamed in _BLAMED.findall(text):
                if blamed in current:
                    found.append((blamed, tool, current[blamed], "refused"))
                    refused.add(blamed)
            if " with " in text:
                current |= dict(_WAY.findall(text.partition(" with ")[2]))
        elif kind == "call" and said:
            tool, said = text.partition("(")[0], "called"
        elif kind == "result" and said == "called":
            said = ""
            if not text.startswith((ERROR, VIOLATION)):
                found += [
                    (name, tool, way, "accepted instead" if name in refused else "accepted") for name, way in current.items()
                ]
    return found


def _record(name: str, fields: Mapping[str, str]) -> str:
    return f"<{name}>{''.join(f'<{tag}>{html.escape(text, quote=False)}</{tag}>' for tag, text in fields.items())}</{name}>"
