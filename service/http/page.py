"""The web page at `/`: its files, read once, and what a browser may do with them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

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


def security_headers(*, styles: str) -> tuple[tuple[bytes, bytes], ...]:
    """Allow scripts and data of this service alone, styles from these sources, no frame around the page."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )


class File(NamedTuple):
    """A file of the page as it is sent."""

    content: bytes
    media_type: bytes
    headers: tuple[tuple[bytes, bytes], ...]


class PageHttp:
    """Serves the page. Its files hold no data: any browser may have them, also without a key."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = [path for path in folder.rglob("*") if path.suffix in MEDIA_TYPES]
        self._files: Final = {path.relative_to(folder).as_posix(): _file(path) for path in paths}

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        return [
            Endpoint("GET", "/", Route.PAGE, self._index, KeyScope.OPEN),
            Endpoint("GET", "/page/{name:path}", Route.PAGE, self._named, KeyScope.OPEN),
        ]

    async def _index(self, call: Call) -> Reply:
        return self._send(INDEX, call)

    async def _named(self, call: Call) -> Reply:
        return self._send(call.path["name"], call)

    def _send(self, name: str, call: Call) -> Reply:
        file = self._files.get(name)
        if file is None:
            raise unknown_route(call)
        if (b"etag", call.headers.get(b"if-none-match")) in file.headers:
            return Reply(b"", 304, b"", file.headers)
        return Reply(file.content, media_type=file.media_type, headers=file.headers)


def _file(path: Path) -> File:
    content = path.read_bytes()
    headers = (
        (b"etag", b'"%s"' % sha256(content).hexdigest()[:32].encode()),
        (b"cache-control", b"no-cache"),  # a browser asks whether its copy is still right
        *security_headers(styles="'self'"),  # no inline style either
    )
    return File(content, MEDIA_TYPES[path.suffix], headers)
