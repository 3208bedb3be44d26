"""The server of most tests."""

from server_cases import server

__all__ = ["server"]
