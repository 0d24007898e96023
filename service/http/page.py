"""The web page at `/`: its files, read once, and their security headers."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from service.edge.keys import KeyScope
from service.http.shell import Call, Endpoint, Reply, unknown_route
from service.labels import Route

FOLDER: Final = Path(__file__).parents[1] / "page"
INDEX: Final = "index.html"
MEDIA_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".LICENSE": b"text/plain; charset=utf-8",
}
Headers = tuple[tuple[bytes, bytes], ...]


def security_headers(*, styles: str) -> Headers:
    """Allow scripts and data of this service only, styles from these sources, and no frame."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )


def endpoints() -> list[Endpoint]:
    """List the endpoints. They need no key, because the files hold no data."""
    paths = [path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES]
    headers = security_headers(styles="'self'")  # no inline style either
    files = {path.relative_to(FOLDER).as_posix(): kept(path, path.read_bytes(), headers) for path in paths}

    async def send(call: Call) -> Reply:
        reply = files.get(call.path.get("name", INDEX))
        if reply is None:
            raise unknown_route(call)
        return unless_kept(call, reply)

    return [
        Endpoint("GET", "/", Route.PAGE, send, KeyScope.OPEN),
        Endpoint("GET", "/page/{name:path}", Route.PAGE, send, KeyScope.OPEN),
    ]


def kept(path: Path, content: bytes, headers: Headers) -> Reply:
    """Make the reply with a file, which browsers keep."""
    etag = b'"%s"' % sha256(content).hexdigest()[:32].encode()
    revalidated = ((b"etag", etag), (b"cache-control", b"no-cache"))  # browsers must revalidate their copy
    return Reply(content, media_type=MEDIA_TYPES[path.suffix], headers=(*revalidated, *headers))


def unless_kept(call: Call, reply: Reply) -> Reply:
    """Return the reply, or 304 if the caller's copy of its file is the same."""
    _, etag = reply.headers[0]
    if etag in call.headers.get(b"if-none-match", b""):  # in a list, or after W/, which proxies add
        return Reply(b"", 304, b"", reply.headers)
    return reply
