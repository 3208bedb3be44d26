"""Fixtures of the command line and the server."""

from command_cases import bank
from server_cases import server, shared_server

__all__ = ["bank", "server", "shared_server"]
