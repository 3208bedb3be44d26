"""Trajectories of an agent, and a model made of rules that reviews them as it was asked to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from deltamem.episode import Message
from deltamem.policy import Completion
from papers.episodic import AgentTrajectory

TIME = datetime(2026, 4, 5, 20, 1)
CANARIES = (
    "Zorblax",
    "Quuxley",
    "zorblax.quuxley@example.org",
    "+44 20 7946 0958",
    "4111 1111 1111 1111",
    "17 Wobble Street",
    "RSV-83XK1",
)


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [_call(name, arguments)]}


def _call(name: str, arguments: dict[str, object]) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


BOOKING: list[dict[str, Any]] = [
    {"role": "system", "content": "You book tables. The user is Zorblax Quuxley."},
    {"role": "user", "content": "Hi, I am Zorblax Quuxley. Please book a table for two at an Italian place tonight."},
    call("search_restaurants", cuisines=["Italian"], city="Springfield"),
    {"role": "tool", "content": json.dumps({"restaurants": [{"id": "rest-1", "capacity": 40}]})},
    call("create_reservation", restaurant_id="rest-1", user_id="u-9931", phone="+44 20 7946 0958", party_size=2),
    {"role": "tool", "content": json.dumps({"reservation_id": "RSV-83XK1", "status": "confirmed"})},
    {"role": "assistant", "content": "The table is booked."},
    {"role": "user", "content": "Thanks! Now deliver a pizza to 17 Wobble Street, card 4111 1111 1111 1111."},
    call("create_order", email="zorblax.quuxley@example.org", address1="17 Wobble Street", fulfillment="delivery"),
    {"role": "tool", "content": "Error: the restaurant is closed"},
    {"role": "assistant", "content": "The restaurant is closed, so I could not order."},
    {"role": "user", "content": "Then choose another one."},
    call("create_order", email="zorblax.quuxley@example.org", address1="17 Wobble Street", fulfillment="delivery"),
    {"role": "tool", "content": json.dumps({"status": "created"})},
    {"role": "assistant", "content": "It is on the way."},
]
"""Three turns in two episodes, full of data of a user."""


def booking(trajectory_id: str = "t1", messages: Sequence[dict[str, Any]] = BOOKING) -> AgentTrajectory:
    return AgentTrajectory.of(trajectory_id, TIME, messages)


def turn_block(number: int, *, ended: bool, achieved: bool = True, note: str = "") -> str:
    return (
        f"<summary_turn><turn_id>{number}</turn_id><situation>The user wants a table or a meal.{note}</situation>"
        f"<intent>Arrange it in turn {number}.</intent><action>Called the tool for it.</action>"
        "<thought>The arguments came from the search.</thought>"
        f"<assessment_assistant>{'Yes' if achieved else 'No'}, as the result shows.</assessment_assistant>"
        f"<assessment_user>{'Yes' if ended else 'No'}, by the next message.</assessment_user></summary_turn>"
    )


def summary_block(achieved: bool = True, note: str = "") -> str:
    return (
        f"<summary><situation>Somebody wanted an evening meal.{note}</situation><intent>Get a table or a delivery.</intent>"
        f"<assessment>{'Yes' if achieved else 'No'}</assessment><justification>The tool confirmed it.</justification>"
        "<reflection>Checking opening hours first saves a failed order.</reflection></summary>"
    )


def reflection(
    operator: str = "add",
    id: str | None = None,
    title: str = "Check opening hours first",
    use_cases: str = "Orders and bookings for a given time.",
    hints: str = "Look up the opening hours before creating an order, because a closed place refuses it.",
    confidence: object = "0.7",
) -> str:
    target = "" if id is None else f"<id>{id}</id>"
    return (
        f"<reflection><operator>{operator}</operator>{target}<title>{title}</title><use_cases>{use_cases}</use_cases>"
        f"<hints>{hints}</hints><confidence>{confidence}</confidence></reflection>"
    )


def reflections(*blocks: str) -> str:
    return f"<reflections>{''.join(blocks)}</reflections>"


def answer(messages: Sequence[Message], note: str = "") -> str:
    """What a careful model answers: thanks in the next message end an episode, the lesson is added and then improved."""
    prompt, asked = messages[0]["content"], messages[1]["content"]
    if "You keep the lessons" in prompt:
        known = re.search(r"^id: (m\d+)$", asked, re.MULTILINE)
        if known is None:
            return reflections(reflection(hints=f"Look up the opening hours before creating an order.{note}"))
        hints = f"Look up the opening hours before creating an order, and once more after a failure.{note}"
        return reflections(reflection("update", known[1], hints=hints, confidence="0.8"))
    if "You read one finished episode" in prompt:
        return summary_block(note=note)
    part = asked.partition("<turns>")[2]
    users = {int(n): user for n, user in re.findall(r"<turn_(\d+)>\nuser: (.*)\n", part)}
    following = part.partition("<next_message>\n")[2]
    blocks = [turn_block(n, ended="Thanks" in users.get(n + 1, following), note=note) for n in users]
    return f"<summary>{''.join(blocks)}</summary>"


class Reviewer:
    """The rules as a policy; what it was asked is kept."""

    name = "reviewer"

    def __init__(self, answers: Callable[[Sequence[Message]], str] = answer) -> None:
        self.asked: list[list[Message]] = []
        self._answers = answers

    async def complete(self, messages: Sequence[Message]) -> Completion:
        self.asked.append(list(messages))
        return Completion(self._answers(messages), truncated=False, tokens=5, prompt_tokens=7)
