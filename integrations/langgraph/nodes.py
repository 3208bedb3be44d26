"""Nodes of a graph of LangGraph that recall before the model answers and remember afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from anyio.from_thread import start_blocking_portal
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.store.base import GetOp, validate_op_namespace

from deltamem.bank.store import MemoryStore
from deltamem.blank import is_blank
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.jobs import JobConflictError
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy
from deltamem.recall import recalled_text, text_of, with_appended
from deltamem.sessions import Session, Turn
from integrations.langgraph.store import DeltaMemStore, owner_of

logger = logging.getLogger(__name__)

_RECALLED = "deltamem_recalled"
"""In a message's ``additional_kwargs``: what was appended to it. No model is sent these."""


class MemoryNodes:
    """Nodes of a graph whose state has ``messages`` with the reducer ``add_messages``.

    ::

        nodes = MemoryNodes(memory, policy, ("memories", "{user_id}"))
        builder.add_node("recall", nodes.recall)      # before the model
        builder.add_node("remember", nodes.remember)  # after its last answer

    Both run in ``invoke`` and ``ainvoke``.
    """

    def __init__(
        self,
        memory: MemoryStore,
        policy: Policy,
        namespace: tuple[str, ...],
        *,
        person_name: str | None = None,
        timezone: str | None = None,
        k: int = 5,
        session: Literal["exchange", "thread"] = "exchange",
        enqueue: bool = False,
        settings: ManagerSettings | None = None,
    ) -> None:
        """Bind a store and a policy; both stay the caller's to close.

        Args:
            memory: Where the memories are.
            policy: The model that reads sessions.
            namespace: Whose memory, as langmem's tools take it: a label such as ``{user_id}`` stands for that entry of
                the run's ``configurable``.
            person_name: How memories name the person, likewise; by default the last label of the namespace.
            timezone: Time zone of the person (an IANA name), likewise, which dates sessions. Where the run names none, it is
                the one that the owner has, or else the store's.
            k: How many memories are recalled at most.
            session: What is remembered as one session: the last exchange, from the person's message to the answer, or the
                whole thread, for a graph that ends with the conversation. Either is remembered once.
            enqueue: Leave sessions to a `deltamem.jobs.Worker` (made with `manager_of`) instead of reading them in the node.
            settings: How sessions are read.
        """
        self._memory = memory
        self._policy = policy
        self._namespace = namespace
        self._person_name = person_name or namespace[-1]
        self._timezone = timezone
        self._k = k
        self._whole = session == "thread"
        self._enqueue = enqueue
        self._settings = settings
        self._store = DeltaMemStore(memory)
        self.recall: RunnableLambda[Any, dict[str, Any]] = RunnableLambda(self._recall, name="recall")
        """Appends what is remembered to the person's message if that is the last one; see `deltamem.recall`.

        The message keeps it, so a thread only ever grows at its end, and a prompt's cached beginning stays what it is.
        """
        self.remember: RunnableLambda[Any, dict[str, Any]] = RunnableLambda(self._remember, self._aremember, name="remember")
        """Remembers what was said, without what was recalled, tools and system messages, once the model has answered."""

    def manager_of(self, owner: str) -> MemoryManager:
        """The manager of an owner, for a `deltamem.jobs.Worker`."""
        return MemoryManager(self._memory, owner, self._policy, self._settings)

    def _recall(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        messages = _messages(state)
        last = messages[-1] if messages else None
        if not isinstance(last, HumanMessage) or _RECALLED in last.additional_kwargs:
            return {}
        query = text_of(last.content)
        owned = self._store.bank(self._owner(config)) if not is_blank(query) else None
        if owned is None:
            return {}
        hits = self._store.find(owned, query, self._k)
        addition = recalled_text([hit.memory for hit in hits], _filled(self._person_name, config))
        if not addition:
            return {}
        if last.id is None:
            raise DeltaMemError("recall needs messages with ids: give the state's messages the reducer add_messages")
        noted = {**last.additional_kwargs, _RECALLED: addition}
        content = with_appended(last.content, addition)
        return {"messages": [last.model_copy(update={"content": content, "additional_kwargs": noted})]}

    def _remember(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        with start_blocking_portal() as portal:
            return portal.call(self._aremember, state, config)

    async def _aremember(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        session = await asyncio.to_thread(self._session, state, config)
        if session is not None and self._enqueue:
            await asyncio.to_thread(self._enqueue_session, session)
        elif session is not None:
            manager = await asyncio.to_thread(self.manager_of, session.person_id)
            if (await manager.ingest(session)).outcome is Outcome.UNREADABLE:
                logger.warning("session %r was not remembered: the model's answer could not be read", session.id)
        return {}

    def _enqueue_session(self, session: Session) -> None:
        try:
            self._memory.bank(session.person_id).enqueue(session)
        except JobConflictError:
            # A node that runs again comes with another time, and an answer that was made again is not a second session.
            logger.debug("session %r was given before", session.id)

    def _session(self, state: Any, config: RunnableConfig) -> Session | None:
        """What there is to remember; None if the model has not answered yet."""
        messages = _messages(state)
        last = messages[-1] if messages else None
        if not isinstance(last, AIMessage) or last.tool_calls:
            return None
        spoken = [message for message in messages if isinstance(message, HumanMessage | AIMessage)]
        thread = str((config.get("configurable") or {}).get("thread_id") or "")
        session_id = thread
        if not self._whole:
            asked = [place for place, message in enumerate(spoken) if isinstance(message, HumanMessage)]
            if not asked:
                return None
            begin = asked[-1]
            while begin and isinstance(spoken[begin - 1], HumanMessage):
                begin -= 1
            spoken = spoken[begin:]
            session_id = "/".join(part for part in (thread, spoken[0].id) if part)
        if not session_id:
            raise DeltaMemError("remember needs a thread_id, or messages with ids, to know what it has remembered")
        turns = tuple(turn for turn in map(_turn, spoken) if turn.content.strip())
        if not any(turn.role == "user" for turn in turns):
            return None
        person_name, owner = _filled(self._person_name, config), self._owner(config)
        timezone = None
        if self._timezone is not None:
            with suppress(DeltaMemError):  # this run names none
                timezone = _filled(self._timezone, config)
        return Session(owner, person_name, self._memory.bank(owner).now(timezone).time, turns, session_id)

    def _owner(self, config: RunnableConfig) -> str:
        labels = tuple(_filled(label, config) for label in self._namespace)
        validate_op_namespace(GetOp(labels, ""))
        return owner_of(labels)


def _messages(state: Any) -> list[AnyMessage]:
    return list(state["messages"] if isinstance(state, Mapping) else state.messages)


def _filled(template: str, config: RunnableConfig) -> str:
    """A template such as ``{user_id}`` with the value that the run has for it; any other text as it is."""
    if not (template.startswith("{") and template.endswith("}")):
        return template
    name = template[1:-1]
    values = config.get("configurable") or {}
    if not values.get(name):
        raise DeltaMemError(f"the run names no {name!r}: pass config={{'configurable': {{{name!r}: ...}}}}")
    return str(values[name])


def _turn(message: AnyMessage) -> Turn:
    content: object = message.content
    recalled = message.additional_kwargs.get(_RECALLED)
    if recalled and isinstance(content, str):
        content = content.removesuffix(recalled)
    elif recalled and isinstance(content, list):
        content = content[:-1]
    return Turn("user" if isinstance(message, HumanMessage) else "assistant", text_of(content))
