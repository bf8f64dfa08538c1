"""Serves a model over HTTP: OpenAI's interface with a length, a simpler one, and a web page."""

from impatience.server.app import create_app
from impatience.server.run import Server, listen, serve
from impatience.server.settings import Access, Limits, check_host, read_key

__all__ = ["Access", "Limits", "Server", "check_host", "create_app", "listen", "read_key", "serve"]
