"""The tools of an MCP server as LangChain's, over standard input and output or HTTP: python client.py CONNECTION_AS_JSON."""

import asyncio
import json
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.prompts import load_mcp_prompt
from langchain_mcp_adapters.resources import load_mcp_resources
from langchain_mcp_adapters.tools import load_mcp_tools


async def report(session):
    tools = {tool.name: tool for tool in await load_mcp_tools(session)}

    async def ask(name, **arguments):
        """The message that an agent gets."""
        return await tools[name].ainvoke({"type": "tool_call", "id": "1", "name": name, "args": arguments})

    async def call(name, **arguments):
        """The structured result, which stands beside the text for the model."""
        return (await ask(name, **arguments)).artifact["structured_content"]

    added = await call("add_memory", text="Ann has a dog named Rex.", time="2026-03-02T09:00:00")
    memory_id = added["changes"][0]["id"]
    found = await call("search_memories", query="dog", k=1)
    await call("update_memory", memory_id=memory_id, text="Ann has a cat named Tom.")
    history = await call("memory_history", memory_id=memory_id)
    refused = [
        await ask("delete_memory", memory_id=memory_id, erase=True),
        await ask("get_memory", memory_id="m99"),
    ]
    (state,) = await load_mcp_resources(session, uris="memory://state")
    (prompt,) = await load_mcp_prompt(session, "recall", arguments={"topic": "cat"})
    await call("delete_memory", memory_id=memory_id, erase=True, confirm=True)
    return {
        "tools": sorted(tools),
        "found": [memory["text"] for memory in found["memories"]],
        "history": [step["event"] for step in history["steps"]],
        "refused": [(message.status, message.text) for message in refused],
        "state": [memory["text"] for memory in json.loads(state.as_string())["memories"]],
        "prompt": prompt.content,
        "left": (await call("get_memories"))["memories"],
    }


async def main():
    client = MultiServerMCPClient({"memory": json.loads(sys.argv[1])})
    async with client.session("memory") as session:
        print(json.dumps(await report(session)))


asyncio.run(main())
