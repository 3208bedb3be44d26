"""Memory in LangGraph: a store, and nodes that recall and remember."""

from integrations.langgraph.nodes import MemoryNodes
from integrations.langgraph.store import DeltaMemStore, ItemError, namespace_of, owner_of

__all__ = ["DeltaMemStore", "ItemError", "MemoryNodes", "namespace_of", "owner_of"]
