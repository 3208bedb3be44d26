"""The routes that mem0's clients call: those of its platform and those of its open-source server."""
