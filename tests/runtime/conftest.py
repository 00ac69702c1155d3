"""Fixtures of these tests: those of the gateway's."""

from tests.gateway.conftest import application, broker, house, http
from tests.memory import tmp_path

__all__ = ["application", "broker", "house", "http", "tmp_path"]
