"""API keys, and the check of requests."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from contextlib import suppress
from pathlib import Path

from starlette.requests import Request

from gcnbatch.errors import InputError
from gcnbatch.fileio import open_regular
from gcnbatch.serving.bodies import Refused

_LEAST = 16  # characters of a key
_FILE_BYTES = 1 << 20


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the digests of the keys in a file, one a line; lines that begin with # are left out.

    Raises
    ------
    InputError
        When it has no key, or a short one.
    """
    with open_regular(path, "a file with a key on each line") as file:
        text = file.read(_FILE_BYTES).decode("utf-8", "replace")
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not keys:
        raise InputError(str(path), "no key in it", "a key on each line", "openssl rand -hex 24 makes one.")
    if (shortest := min(map(len, keys))) < _LEAST:
        raise InputError(str(path), f"a key of {shortest} characters", f"at least {_LEAST}")
    return tuple(map(_digest, keys))


def check_key(request: Request, keys: tuple[bytes, ...]) -> None:
    """Refuse a request without a valid key; without `keys`, one whose header Host is not this machine.

    Otherwise a web page could reach a local server by DNS rebinding.

    Raises
    ------
    Refused
    """
    if not keys:
        if not _is_local(request.url.hostname or ""):
            raise Refused(421, "the header Host names another host than this one; a server without keys is local")
        return
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    given = _digest(key.strip())
    same = [hmac.compare_digest(given, one) for one in keys]  # all: the time must not tell which one matches
    if kind.lower() != "bearer" or not any(same):
        raise Refused(
            401, "a key is missing or wrong: send the header 'Authorization: Bearer KEY'", WWW_Authenticate="Bearer"
        )


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
