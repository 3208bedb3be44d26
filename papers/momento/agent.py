"""Who talks: agents and users, by models or by scripts; and the tools as an agent has them within a trial."""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, Answer
from deltamem.prompts import Prompt
from deltamem.replies import without_thinking
from deltamem.window import estimate_tokens
from eval.answer import cost_of
from eval.config import ModelSettings
from eval.records import Cost
from papers.momento import tools
from papers.momento.facts import FactReader
from papers.momento.mini import OPENINGS, form_pattern
from papers.momento.scores import Action
from papers.momento.tasks import MomentoTask
from papers.momento.world import World

DONE = "[DONE]"
"""What a user says when there is nothing more to say."""

BEGINNING = "(The conversation begins. Say what you want.)"
SILENCE = "(The assistant said nothing.)"
NOTHING_KNOWN = "(nothing)"
SESSIONS_TOLD = (
    "\n\nAll that was said in those conversations can be read with execute_sql, in the table sessions; "
    "get_database_schema has its columns."
)
TOO_MANY_ROUNDS = "(No more tool calls for this message. Answer the customer now with what you have.)"
EARLIER = "(Notes on the earlier part of this conversation)"
SCHEMAS = [tool.schema() for tool in tools.TOOLS.values()]
"""The tools as models are shown them."""
FEWEST_TOKENS = 1000
"""In which a conversation could be led."""
KEPT_SHARE = 0.8
"""Of the room for the conversation, what its newest part may take when the rest is summarised."""
_IMAGE = re.compile(r"\[IMAGE:\s*([\d,\s]+)\]")


@dataclass
class Toolbox:
    """The tools of one trial, which note what was called."""

    world: World
    actions: list[Action] = field(default_factory=list)
    repeated: int = 0  # Calls that were answered from the cache of their round
    unreadable: int = 0  # Calls whose arguments were no JSON object

    async def round(self, calls: Sequence[tuple[str, str]]) -> list[str]:
        """Carry out the calls of one reply, names with JSON arguments; what occurs twice is done once.

        Arguments that are no JSON object are no action.
        """
        results: dict[tuple[str, str], str] = {}
        for name, text in calls:
            if (name, text) in results:
                self.repeated += 1
                continue
            try:
                arguments = json.loads(text or "{}")
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                result = await asyncio.to_thread(tools.call, self.world, name, arguments)
                self.actions.append(Action(name=name, arguments=arguments, result=result))
            else:
                self.unreadable += 1
                result = f"{tools.ERROR}the arguments of {name} are not a JSON object"
            results[name, text] = result
        return [results[one] for one in calls]

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """One call of a script; None if it failed."""
        (result,) = await self.round([(tool, json.dumps(arguments))])
        return None if tools.failed(result) else json.loads(result)


@dataclass(frozen=True)
class UserMessage:
    """A user's message, with the pictures that come with it as data URLs."""

    text: str
    images: tuple[str, ...] = ()


@dataclass
class Model:
    """A model as a part of a trial plays it; draws of different trials differ."""

    llm: LLM
    settings: ModelSettings
    seed: int
    scope: str = ""
    trial: int = 1
    cost: Cost = field(default_factory=Cost)  # Of all calls so far
    cut: int = 0  # Replies that were stopped by the limit of tokens

    def of_trial(self, scope: str, trial: int) -> Model:
        """The same in a trial, where it counts anew."""
        return Model(self.llm, self.settings, self.seed, scope, trial)

    async def chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] | None = None
    ) -> Answer:
        """One reply."""
        answer = await self.llm.chat(
            messages,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            seed=self.seed,
            tools=tools,
            extra_body=self.settings.extra_body or None,
            scope=self.scope,
            sample=self.trial,
        )
        self.cost += cost_of(answer)
        self.cut += answer.truncated
        return answer


@dataclass
class LLMAgent:
    """A model with tools."""

    model: Model
    toolbox: Toolbox
    task: MomentoTask
    prompt: Prompt
    summary_prompt: Prompt
    rounds: int  # Of tool calls for each message
    context_tokens: int  # Window of the model
    shortened: int = 0  # How often the beginning of the conversation was summarised
    history: list[dict[str, Any]] = field(default_factory=list)

    async def turn(self, message: UserMessage, memory: Sequence[str]) -> str:
        """Reply to a message, given what was recalled for it, oldest first."""
        system = self.prompt.fill(
            user_id=self.task.user_id,
            date=f"{self.task.current_date:%A}, {self.task.current_date}",
            memory=("\n".join(memory) or NOTHING_KNOWN) + SESSIONS_TOLD * (self.toolbox.world.sessions_of is not None),
            rounds=str(self.rounds),
        )
        head = {"role": "system", "content": system}
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        content = [{"type": "text", "text": message.text}, *pictures] if pictures else message.text
        self.history.append({"role": "user", "content": content})
        for _ in range(self.rounds):
            answer = await self._chat(head, SCHEMAS)
            if pictures:  # seen once; they would fill the window
                self.history[-1] = {"role": "user", "content": f"{message.text}\n(picture)"}
                pictures = []
            if not answer.tool_calls:
                return self._replied(answer)
            parts = [call.message_part() for call in answer.tool_calls]
            self.history.append({"role": "assistant", "content": answer.text or None, "tool_calls": parts})
            results = await self.toolbox.round([(call.name, call.arguments) for call in answer.tool_calls])
            self.history += [
                {"role": "tool", "tool_call_id": call.id, "content": result}
                for call, result in zip(answer.tool_calls, results, strict=True)
            ]
        nudge = {"role": "user", "content": TOO_MANY_ROUNDS}
        self.history.append(nudge)
        answer = await self._chat(head, None)
        self.history.remove(nudge)
        return self._replied(answer)

    def _replied(self, answer: Answer) -> str:
        reply = without_thinking(answer.text)
        self.history.append({"role": "assistant", "content": reply})
        return reply

    async def _chat(self, head: Mapping[str, object], tools: Sequence[Mapping[str, object]] | None) -> Answer:
        await self._shorten(head)
        return await self.model.chat([head, *self.history], tools)

    async def _shorten(self, head: Mapping[str, object]) -> None:
        """Where the conversation outgrows the window, keep the newest four fifths word for word and sum up the rest."""
        room = self.context_tokens - _tokens(head) - _tokens(SCHEMAS) - (self.model.settings.max_tokens or 0)
        if room <= 0 or _tokens(self.history) <= room:
            return
        groups: list[list[dict[str, Any]]] = []
        for message in self.history:
            if message["role"] == "tool" and groups:  # servers take calls and their results only together
                groups[-1].append(message)
            else:
                groups.append([message])
        kept: list[list[dict[str, Any]]] = []
        while groups and (not kept or _tokens(kept) + _tokens(groups[-1]) <= KEPT_SHARE * room):
            kept.insert(0, groups.pop())
        if not groups:
            return
        old = "\n".join(_line(message) for group in groups for message in group)
        most = 3 * (self.context_tokens - (self.model.settings.max_tokens or 0)) // 2  # bytes, well within the window
        content = self.summary_prompt.fill(messages=old[-most:])
        answer = await self.model.chat([{"role": "user", "content": content}])
        self.shortened += 1
        notes = {"role": "user", "content": f"{EARLIER}\n{without_thinking(answer.text)}"}
        self.history = [notes, *(message for group in kept for message in group)]


def check_room(prompt: Prompt, settings: ModelSettings, window: int) -> None:
    """Refuse a window that has no room for a conversation beside instructions, tools and a reply."""
    fixed = estimate_tokens(prompt.text) + _tokens(SCHEMAS)
    room = window - fixed - (settings.max_tokens or 0)
    if room < FEWEST_TOKENS:
        raise DeltaMemError(
            f"instructions and tools take about {fixed:,} of the {window:,} tokens of the agent's window, and "
            f"answer.max_tokens={settings.max_tokens} leaves no room for a conversation; lower it or give a larger window"
        )


def _tokens(value: object) -> int:
    return estimate_tokens(json.dumps(value, ensure_ascii=False))


def _line(message: Mapping[str, Any]) -> str:
    calls = [
        f"calls {part['function']['name']}({part['function']['arguments']})" for part in message.get("tool_calls") or ()
    ]
    return f"{message['role']}: {'; '.join([str(message['content'] or ''), *calls])}"


class LLMUser:
    """A model that plays the user."""

    def __init__(self, model: Model, task: MomentoTask, prompt: Prompt) -> None:
        self._model = model
        images = "\n".join(f"{image.id}: {image.description}" for image in task.images) or "(none)"
        filled = prompt.fill(date=str(task.current_date), instruction=task.instruction, images=images)
        self._messages: list[dict[str, object]] = [{"role": "system", "content": filled}]

    async def say(self, reply: str | None) -> str:
        """The next message after the agent's reply, None at the beginning; `DONE` ends the trial."""
        # What the agent says is what this model is told, and the reverse.
        heard = BEGINNING if reply is None else reply or SILENCE
        self._messages.append({"role": "user", "content": heard})
        answer = await self._model.chat(self._messages)
        text = without_thinking(answer.text)
        if not text:
            raise DeltaMemError("the user's model said nothing; raise user.max_tokens, or turn its thinking off")
        self._messages.append({"role": "assistant", "content": text})
        return text


class ScriptedUser:
    """Says what ``momento-mini`` has the user say, agrees to whatever is asked, and is done with anything else."""

    def __init__(self, task: MomentoTask) -> None:
        self._opening = task.opening

    async def say(self, reply: str | None) -> str:
        """The next message after the agent's reply, None at the beginning; `DONE` ends the trial."""
        if reply is None:
            return self._opening
        return "Yes, please go ahead." if reply.endswith("?") else DONE


class ScriptedAgent:
    """Does what is asked in ``momento-mini`` if it was recalled what is needed, as it was recalled, and nothing otherwise.

    So it measures what a memory gives an agent that makes no mistakes of its own.
    """

    def __init__(self, toolbox: Toolbox, task: MomentoTask, reader: FactReader) -> None:
        self._tools, self._task, self._reader = toolbox, task, reader
        self._planned: tuple[str, dict[str, Any], str] | None = None  # a call, and what to say once it is done

    async def turn(self, message: UserMessage, memory: Sequence[str]) -> str:
        """Reply to a message, given what was recalled for it, oldest first."""
        if self._planned is not None:
            (name, arguments, told), self._planned = self._planned, None
            done = await self._tools.call(name, **arguments)
            return "I am sorry, that was refused." if done is None else told.format(total=float(done.get("total_price", 0)))
        matches = ((topic, form_pattern(opening).fullmatch(message.text)) for topic, opening in OPENINGS.items())
        topic, asked = next(((topic, match.groupdict()) for topic, match in matches if match is not None), ("", {}))
        if not topic:
            return "I am sorry, I do not understand."
        known = self._reader.known(topic, asked, memory)
        if known is None:
            return "I am sorry, I do not know what you mean."
        return await self._serve(topic, asked | known)

    async def _serve(self, topic: str, want: Mapping[str, str]) -> str:
        user = self._task.user_id
        arguments: dict[str, Any]
        if topic == "tier":
            await self._tools.call("get_membership_status", user_id=user)
            today = str(self._task.current_date)
            arguments = {"user_id": user, "tier": want["tier"], "start_date": today, "end_date": want["end"]}
            return self._plan("apply_membership", arguments, f"You have a {want['tier']} membership until {want['end']}.")
        if topic == "time":
            tables = await self._tools.call("list_user_reservations", user_id=user) or []
            for table in tables:
                if table["restaurant_name"] == want["place"]:
                    arguments = {"reservation_id": table["id"], "user_id": user, "time": want["time"]}
                    return self._plan("update_reservation", arguments, f"Your table is now at {want['time']}.")
            return "I am sorry, you have no table there."
        found = await self._tools.call("search_restaurants", name=want["place"]) or []
        place = next((one["id"] for one in found if one["name"] == want["place"]), None)
        if place is None:
            return "I am sorry, there is no such restaurant."
        if topic in ("party", "occasion"):
            people, minutes, at = (2, 60, "19:00") if topic == "occasion" else (int(want["count"]), 90, want["time"])
            arguments = {"restaurant_id": place, "user_id": user, "date": want["date"], "time": at}
            arguments |= {"party_size": people, "duration_minutes": minutes}
            told = f"Your table for {people} people at {want['place']} is booked."
            return self._plan("create_reservation", arguments, told)
        menu = await self._tools.call("list_restaurant_menu", restaurant_id=place) or []
        dish = next((one for one in menu if one["name"] == want["dish"]), None)
        if dish is None:
            return "I am sorry, that dish is not on the menu."
        if topic == "favourite":
            return f"The {dish['name']} costs ${dish['price']:.2f}."
        item = {"menu_item_id": dish["id"], "quantity": int(want.get("count", 1))}
        arguments = {"user_id": user, "restaurant_id": place, "items": [item], "fulfillment": "pickup"}
        if topic == "provider":
            arguments |= {
                "fulfillment": "delivery",
                "delivery_address": want["address"],
                "delivery_provider": want["provider"],
            }
        return self._plan("create_order", arguments, "Your order is placed; it costs ${total:.2f}.")

    def _plan(self, name: str, arguments: dict[str, Any], told: str) -> str:
        self._planned = name, arguments, told
        return "I have everything. Shall I go ahead?"


def with_images(text: str, task: MomentoTask, folder: Path | None) -> UserMessage:
    """A user's message with the pictures that it names; a `DeltaMemError` if a picture is not there."""
    wanted = [int(number) for match in _IMAGE.finditer(text) for number in re.findall(r"\d+", match[1])]
    if not wanted:
        return UserMessage(text)
    paths = {image.id: image.path for image in task.images}
    urls = []
    for number in dict.fromkeys(wanted):
        if number not in paths:
            continue  # the user's model made it up
        path = None if folder is None else folder / paths[number]
        if path is None or not path.is_file():
            raise DeltaMemError(f"the picture {paths[number]} of task {task.task_id} is not in images={folder}")
        kind = mimetypes.guess_type(path.name)[0] or "image/jpeg"
        urls.append(f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}")
    return UserMessage(_IMAGE.sub("", text).strip(), tuple(urls))
