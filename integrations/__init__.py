"""Memory inside other frameworks; nothing else of the library imports this."""
