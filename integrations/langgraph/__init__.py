"""Memory in LangGraph: a store, and nodes that recall and remember."""

from integrations.langgraph.memory import DeltaMemStore, ItemError, MemoryNodes, namespace_of, owner_of

__all__ = ["DeltaMemStore", "ItemError", "MemoryNodes", "namespace_of", "owner_of"]
