"""The server of most tests."""

from server_cases import server, shared_server

__all__ = ["server", "shared_server"]
