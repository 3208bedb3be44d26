"""A scripted agent whose habits break rules of the service, and the tasks in which they do.

Each agent gives some arguments in a way that the service refuses. What it changes after a refusal it draws, once for each
argument; only what it is told of earlier trials tells it which way works. Some ways are accepted and are not what the user
wanted. It does not understand what a refusal says, only what it is about: a model that reads refusals needs less memory.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from inspect import isawaitable
from typing import Any

from papers.momento.agent import Said, ScriptedAgent, Toolbox
from papers.momento.database import SQLiteDatabase
from papers.momento.facts import FactReader
from papers.momento.mini import alternatives, carry_out, mini_catalogue, mini_tasks, new_id
from papers.momento.policies import PROVIDERS
from papers.momento.tasks import Node, Task
from papers.momento.world import Catalogue, World

Want = Mapping[str, str]
Way = Callable[["HabitualAgent", Want], Any]
"""Gives an argument; what it returns may have to be awaited."""

CONTENT, DISCONTENT = "Thank you, that is what I wanted.", "That is not what I wanted."
"""What the user says at the end."""


@dataclass(frozen=True)
class Choice:
    """An argument that can be given in several ways, of which the first is right."""

    argument: str
    ways: Mapping[str, Way]
    accepted: str = ""
    """A way that the service accepts although it is not what the user wants; no habit."""
    about: str = ""
    """As the service calls it in refusals, if not by its name."""

    @property
    def right(self) -> str:
        """The way that works."""
        return next(iter(self.ways))

    @property
    def habits(self) -> list[str]:
        """The ways that are always refused, or nearly so."""
        return [way for way in self.ways if way not in (self.right, self.accepted)]


def _day(argument: str, wrong: str, days: int) -> Choice:
    def written(form: str) -> Way:
        return lambda _, want: f"{date.fromisoformat(want[argument]):{form}}"

    ways: dict[str, Way] = {
        "year-month-day": written("%Y-%m-%d"),
        "day-month-year": written("%d-%m-%Y"),
        "month/day/year": written("%m/%d/%Y"),
        "the name of the month and the day": written("%B %d, %Y"),
        wrong: lambda _, want: str(date.fromisoformat(want["today"]) + timedelta(days=days)),
    }
    return Choice(argument, ways, wrong)


_TIME = Choice(
    "time",
    {
        "24 hours with a colon": lambda _, want: want["time"],
        "12 hours with am or pm": lambda _, want: f"{int(want['time'][:2]) - 12}:{want['time'][3:]} pm",
        "24 hours with the letter h": lambda _, want: want["time"].replace(":", "h"),
        "24 hours without a mark": lambda _, want: want["time"].replace(":", ""),
        "noon, when there is room": lambda _, want: "12:00",
    },
    "noon, when there is room",
)

CHOICES: Mapping[str, Sequence[Choice]] = {
    "create_order": (
        Choice(
            "items",
            {
                "the id from list_restaurant_menu": lambda agent, want: agent.dishes(want, 0),
                "the first id from query_menu_items": lambda agent, want: agent.dishes(want, None, 0),
                "the last id from query_menu_items": lambda agent, want: agent.dishes(want, None, -1),
                "the name of the dish": lambda _, want: _item(want["dish"], want),
                "the id below it in list_restaurant_menu": lambda agent, want: agent.dishes(want, 1),
            },
            "the id below it in list_restaurant_menu",
            about="menu item",
        ),
        Choice(
            "fulfillment",
            {
                "the word pickup or delivery": lambda _, want: _word(want, "pickup", "delivery"),
                "the words takeaway or home delivery": lambda _, want: _word(want, "takeaway", "home delivery"),
                "the words collection or courier": lambda _, want: _word(want, "collection", "courier"),
                "one word in capitals": lambda _, want: _word(want, "PICKUP", "DELIVERY"),
                "the words to go or to the door": lambda _, want: _word(want, "to go", "to the door"),
            },
        ),
        Choice(
            "delivery_provider",
            {
                "the id from get_delivery_providers": lambda agent, want: agent.provider(want, 0),
                "the name as it is written": lambda _, want: PROVIDERS[want["provider"]]["name"],
                "the name in capitals": lambda _, want: want["provider"].upper(),
                "the name with blanks": lambda _, want: _spaced(PROVIDERS[want["provider"]]["name"]),
                "the id of another one that may be faster": lambda agent, want: agent.provider(want, 1),
            },
            "the id of another one that may be faster",
        ),
    ),
    "create_reservation": (
        Choice(
            "restaurant_id",
            {
                "the id from search_restaurants": lambda agent, want: agent.place(want),
                "the name of the restaurant": lambda _, want: want["place"],
                "the name with low lines": lambda _, want: want["place"].lower().replace(" ", "_"),
                "an id from query_menu_items": lambda agent, want: agent.any_dish(),
                "the first word of the name": lambda _, want: want["place"].split()[0],
            },
            about="restaurant",
        ),
        _day("date", "today, when there is room", 0),
        _TIME,
        Choice(
            "party_size",
            {
                "a number": lambda _, want: int(want["count"]),
                "a number as text": lambda _, want: want["count"],
                "a number with the word people": lambda _, want: f"{want['count']} people",
                "a range of numbers": lambda _, want: f"{want['count']}-{int(want['count']) + 1}",
                "one more, to be sure": lambda _, want: int(want["count"]) + 1,
            },
            "one more, to be sure",
        ),
        Choice(
            "duration_minutes",
            {
                "minutes": lambda _, want: int(want["minutes"]),
                "hours": lambda _, want: int(want["minutes"]) / 60,
                "seconds": lambda _, want: 60 * int(want["minutes"]),
                "minutes with the unit": lambda _, want: f"{want['minutes']} min",
                "the longest that is allowed": lambda _, want: 120,
            },
            "the longest that is allowed",
        ),
    ),
    "apply_membership": (
        Choice(
            "tier",
            {
                "one word": lambda _, want: want["tier"],
                "with the word membership": lambda _, want: f"{want['tier']} membership",
                "with the word tier": lambda _, want: f"{want['tier']} tier",
                "with a plus for its perks": lambda _, want: f"{want['tier']}+",
                "the one that the user has": lambda agent, want: agent.tier(),
            },
            "the one that the user has",
        ),
        Choice(
            "start_date",
            {
                "today, after cancel_membership": lambda agent, want: agent.after("cancel_membership", want),
                "today, with no other call": lambda _, want: want["today"],
                "today, after get_membership_benefits": lambda agent, want: agent.after("get_membership_benefits", want),
                "tomorrow": lambda _, want: str(date.fromisoformat(want["today"]) + timedelta(days=1)),
                "today, after renew_membership": lambda agent, want: agent.after("renew_membership", want),
            },
            about="membership",
        ),
        _day("end_date", "ten years from today", 3650),
    ),
    "update_reservation": (
        Choice(
            "reservation_id",
            {
                "the id from list_user_reservations": lambda agent, want: agent.table(want),
                "the id of the restaurant": lambda agent, want: agent.place(want),
                "the name of the restaurant": lambda _, want: want["place"],
                "the id of the user": lambda agent, want: agent.user,
                "the time of the reservation": lambda _, want: "12:30",
            },
            about="reservation",
        ),
        _TIME,
    ),
}
"""What an agent has to choose for each tool that changes something."""

TOOLS_OF: Mapping[str, str] = {
    "usual": "create_order",
    "provider": "create_order",
    "party": "create_reservation",
    "occasion": "create_reservation",
    "tier": "apply_membership",
    "time": "update_reservation",
}
"""By kind of wish the tool that fulfils it. The other kind, a dish's price, changes nothing and is left out."""

_TOLD: Mapping[str, str] = {
    "create_order": "Your order is placed; it costs ${total:.2f}.",
    "create_reservation": "Your table for {count} people at {place} is booked.",
    "apply_membership": "You have a {tier} membership until {end_date}.",
    "update_reservation": "Your table is now at {time}.",
}


def _item(dish: str, want: Want) -> list[dict[str, Any]]:
    return [{"menu_item_id": dish, "quantity": int(want["count"])}]


def _word(want: Want, fetched: str, brought: str) -> str:
    return brought if "address" in want else fetched


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def habits_of(seed: int) -> dict[tuple[str, str], str]:
    """The habits of an agent, by tool and argument: of each tool's choices one or two."""
    draw = random.Random(f"habits {seed}")
    return {
        (tool, choice.argument): draw.choice(choice.habits)
        for tool, choices in CHOICES.items()
        for choice in draw.sample(list(choices), max(1, len(choices) // 2))
    }


def habit_tasks(seed: int) -> tuple[tuple[Task, ...], Catalogue]:
    """The tasks of ``momento-mini`` that change something, and its catalogue; who wants a membership has another one."""
    catalogue = mini_catalogue(seed)
    world = World(SQLiteDatabase(), catalogue)
    tasks = [task for task in mini_tasks(seed).tasks if task.kind.split()[0] in TOOLS_OF]
    changed = tuple(_with_membership(task, world) if task.kind == "tier" else task for task in tasks)
    world.database.close()
    return changed, catalogue


def _with_membership(task: Task, world: World) -> Task:
    """The task for a user whose membership of another tier must be cancelled first."""
    *looked, applied = task.action_dags[0]
    stamp = f"{task.current_date - timedelta(days=90)}T09:00:00+00:00"
    row = {
        "id": new_id("membership", task.task_id, task.user_id),
        "user_id": task.user_id,
        "tier": "platinum" if applied.arguments["tier"] == "gold" else "gold",
        "status": "active",
        "start_date": str(task.current_date - timedelta(days=90)),
        "end_date": str(task.current_date + timedelta(days=90)),
        "created_at": stamp,
        "updated_at": stamp,
    }
    seed_data = {**task.seed_data, "memberships": [row]}
    before = looked[-1].id
    cancelled = Node(id="ended", tool="cancel_membership", arguments={"user_id": task.user_id}, predecessors=(before,))
    nodes = [*looked, cancelled, applied.model_copy(update={"predecessors": ("ended",)})]
    world.reset(task.current_date, seed_data)
    if broken := [action for action in carry_out(world, nodes) if action.failed]:
        raise AssertionError(f"task {task.task_id}: {broken[0].result}")
    made = {"seed_data": seed_data, "action_dags": alternatives(nodes), **world.hashes(task.user_id)}
    return task.model_copy(update=made)


@dataclass
class RecordingToolbox(Toolbox):
    """Notes the messages of a trial as an agent of the OpenAI protocol would have them."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    thought: str = ""
    """What the agent says with the next call."""

    async def round(self, calls: Sequence[tuple[str, str]]) -> list[str]:
        """See `Toolbox`."""
        results = await super().round(calls)
        names = [f"call-{len(self.messages)}-{number}" for number in range(len(calls))]
        made = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
            for name, (tool, arguments) in zip(names, calls, strict=True)
        ]
        self.messages.append({"role": "assistant", "content": self.thought or None, "tool_calls": made})
        for name, result in zip(names, results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": name, "content": result})
        self.thought = ""
        return results


class HabitualAgent(ScriptedAgent):
    """Obeys what lessons say of the ways that it knows, else its habits; after a refusal it draws another way."""

    def __init__(
        self,
        toolbox: RecordingToolbox,
        task: Task,
        reader: FactReader,
        habits: Mapping[tuple[str, str], str],
        draw: random.Random,
        lessons: Callable[[str], Awaitable[str]],
    ) -> None:
        """Begin a trial.

        Args:
            toolbox: The tools, which note what happens.
            task: What the user wants; only user and date are read.
            reader: Reads what is remembered of the user.
            habits: The way in which it gives an argument unless it knows better, by tool and argument.
            draw: What it draws from.
            lessons: Recalls as text what helps with a request.
        """
        super().__init__(toolbox, task, reader)
        self.user: str = task.user_id
        self._today = str(task.current_date)
        self._box, self._habits, self._draw, self._recall = toolbox, habits, draw, lessons
        self._said, self._lessons = "", ""
        self._wish: tuple[str, dict[str, str]] | None = None

    async def turn(self, said: Said, memory: Sequence[str]) -> str:
        """See `Agent`."""
        self._said = said.text
        self._box.messages.append({"role": "user", "content": said.text})
        reply = await (super().turn(said, memory) if self._wish is None else self._carry_out(*self._wish))
        self._box.messages.append({"role": "assistant", "content": reply})
        return reply

    async def _serve(self, topic: str, want: Mapping[str, str]) -> str:
        tool, wished = TOOLS_OF[topic], {"count": "1", **want, "today": self._today}
        if topic == "occasion":
            wished |= {"count": "2", "time": "19:00", "minutes": "60"}
        elif topic == "party":
            wished["minutes"] = "90"
        elif topic == "tier":
            wished["end_date"] = wished["end"]
            await self._box.call("get_membership_status", user_id=self.user)
        await self._box.call("get_user_details", user_id=self.user)
        self._lessons = await self._recall(f"{self._said} ({tool})")
        self._wish = tool, wished
        return "I have everything. Shall I go ahead?"

    async def _carry_out(self, tool: str, want: Mapping[str, str]) -> str:
        arguments: dict[str, Any] = {"user_id": self.user}
        if tool == "create_order":
            arguments["restaurant_id"] = await self.place(want)
            if "address" in want:
                arguments["delivery_address"] = want["address"]
        choices = [one for one in CHOICES[tool] if one.argument != "delivery_provider" or "address" in want]
        chosen = {one.argument: self._first(tool, one) for one in choices}
        for one in choices:
            arguments[one.argument] = await self._given(one, chosen[one.argument], want)
        self._box.thought = f"I call {tool} with {'; '.join(f'{name}: {way}' for name, way in chosen.items())}."
        changed = set()
        while (done := await self._box.call(tool, **arguments)) is None:
            blamed = _blamed(self._box.actions[-1].result, choices, arguments)
            if blamed is None:
                return f"I am sorry, {tool} was refused."
            if blamed.argument in changed:
                return f"I am sorry, {tool} was refused because of {blamed.argument}."
            changed.add(blamed.argument)
            way = self._other(tool, blamed, chosen[blamed.argument])
            arguments[blamed.argument] = await self._given(blamed, way, want)
            said = f"It was refused because of {blamed.argument}."
            self._box.thought = f"{said} I call {tool} with {blamed.argument}: {way}."
        return _TOLD[tool].format(**{**want, "total": float(done.get("total_price") or 0)})

    async def _given(self, choice: Choice, way: str, want: Mapping[str, str]) -> Any:
        value = choice.ways[way](self, want)
        return await value if isawaitable(value) else value

    def _first(self, tool: str, choice: Choice) -> str:
        ranked = self._ranked(tool, choice)
        worked = [way for way, rank in ranked.items() if rank == 0]
        usual = self._habits.get((tool, choice.argument), choice.right)
        return self._draw.choice(worked) if worked else usual if ranked[usual] == 1 else self._best(ranked)

    def _other(self, tool: str, choice: Choice, tried: str) -> str:
        return self._best({way: rank for way, rank in self._ranked(tool, choice).items() if way != tried})

    def _best(self, ranked: Mapping[str, int]) -> str:
        return self._draw.choice([way for way, rank in ranked.items() if rank == min(ranked.values())])

    def _ranked(self, tool: str, choice: Choice) -> dict[str, int]:
        """Of each way what the lessons say: 0 worked, 1 nothing, 2 was accepted in vain, 3 was refused."""
        about = [line for line in self._lessons.splitlines() if {tool, choice.argument} <= set(re.findall(r"\w+", line))]
        said = {
            way: {m[1] for line in about for m in re.finditer(rf'"{re.escape(way)}" was (\w+)', line)} for way in choice.ways
        }
        return {
            way: 3 if "refused" in of else 0 if "right" in of else 2 if "unwanted" in of else 1 for way, of in said.items()
        }

    # What ways look up

    async def place(self, want: Want) -> str:
        """The id of the restaurant."""
        found = await self._box.call("search_restaurants", name=want["place"]) or []
        return next((str(one["id"]) for one in found if one["name"] == want["place"]), "")

    async def dishes(self, want: Want, below: int | None, hit: int = 0) -> list[dict[str, Any]]:
        """The dish as so many places below it on the menu, or by a hit of a search of all menus."""
        if below is None:
            found = await self._box.call("query_menu_items", name=want["dish"]) or []
            return _item(found[hit]["id"], want) if found else []
        menu = await self._box.call("list_restaurant_menu", restaurant_id=await self.place(want)) or []
        names = [one["name"] for one in menu]
        return _item(menu[(names.index(want["dish"]) + below) % len(menu)]["id"], want) if want["dish"] in names else []

    async def any_dish(self) -> str:
        """The id of a dish."""
        found = await self._box.call("query_menu_items", name="a", limit=1) or []
        return str(found[0]["id"]) if found else ""

    async def provider(self, want: Want, after: int) -> str:
        """The id of the provider, or of one after it."""
        ids = [str(one["id"]) for one in await self._box.call("get_delivery_providers") or []]
        return ids[(ids.index(want["provider"]) + after) % len(ids)]

    async def tier(self) -> str:
        """The tier that the user has."""
        return str((await self._box.call("get_membership_status", user_id=self.user))["tier"])

    async def after(self, tool: str, want: Want) -> str:
        """Today, when a tool has been called."""
        given = {
            "cancel_membership": {"user_id": self.user},
            "renew_membership": {"user_id": self.user, "new_end_date": want["end_date"]},
            "get_membership_benefits": {"tier": want["tier"]},
        }
        await self._box.call(tool, **given[tool])
        return want["today"]

    async def table(self, want: Want) -> str:
        """The id of the user's reservation at the restaurant."""
        found = await self._box.call("list_user_reservations", user_id=self.user) or []
        return next((str(one["id"]) for one in found if one["restaurant_name"] == want["place"]), "")


def _blamed(refusal: str, choices: Sequence[Choice], arguments: Mapping[str, Any]) -> Choice | None:
    """What a refusal is about: it quotes a value, or names an argument."""
    text = refusal.casefold()
    given = {
        name: value[0]["menu_item_id"] if isinstance(value, list) and value else value for name, value in arguments.items()
    }
    quoted = [one for one in choices if f"'{given[one.argument]}'".casefold() in text]
    text = text.replace("_", " ")
    named = [one for one in choices if re.search(rf"\b{one.about or one.argument.replace('_', ' ')}\b", text)]
    return next(iter([*quoted, *named]), None)
