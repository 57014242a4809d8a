"""Who may ask, and what a browser may do with the answer.

By loopback alone no key is needed, but a page of another site must not reach the server through
the user's browser: the ``Host`` header must name this machine (so no name of an attacker's that
resolves to 127.0.0.1 will do), and an ``Origin`` must be our own. At any other address every
request needs the token: from the link, which leaves it in a cookie, or as a password, as Weave's
client and our exporter send their key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "otel_rollout_token"
PARAMETER: Final = "token"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around everything.

    Args:
        app: what is guarded.
        token: that every request needs; ``None``: requests must be addressed to loopback.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, with our headers on its answer, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                answer.setdefault("Content-Security-Policy", POLICY)
            await send(message)

        await (refusal or self._app)(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if self._token is None and host_name(host) not in LOOPBACK:
            return PlainTextResponse("This server answers to localhost only.\n", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("Not for pages of other sites.\n", 403)
        if headers.get("sec-fetch-site") == "cross-site" and (
            headers.get("sec-fetch-mode") != "navigate" or scope["method"] != "GET"
        ):
            return PlainTextResponse("Not for pages of other sites.\n", 403)
        if self._token is None:
            return None
        return self._without_token(scope, headers, self._token)

    def _without_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get(PARAMETER)
        if given is not None and scope["method"] == "GET" and _same(given, token):
            rest = urlencode([pair for pair in query if pair[0] != PARAMETER])
            # One slash: an address that begins with two would lead to another host.
            path = "/" + scope["path"].lstrip("/")
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        if _same(_cookie(headers), token) or _same(_password(headers), token):
            return None
        return PlainTextResponse(
            "Open the link that `otel-rollout view` has printed: it holds the token. "
            "Exporters give the token as WANDB_API_KEY.\n",
            401,
            {"WWW-Authenticate": 'Basic realm="otel-rollout"'},
        )


def host_name(host: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _cookie(headers: Mapping[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _password(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None
