"""Fixtures of the command line and the server."""

from command_cases import bank
from server_cases import server

__all__ = ["bank", "server"]
