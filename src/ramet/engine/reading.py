"""Read what a server sends in bounded memory: bytes per response, per line and per error have a limit.

Compression is not asked for. A server that compresses all the same is decompressed piece by piece, so that a few
bytes cannot become gigabytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Iterator

import httpx

from ramet.errors import EngineBusy

IDENTITY = {"Accept-Encoding": "identity"}  # header of every request
MAX_LINE_BYTES = 4 * 2**20
MAX_ERROR_BYTES = 64 * 2**10  # of an error response; the rest is not read
MAX_LISTING_BYTES = 4 * 2**20  # of a list of models
RESPONSE_BYTES, BYTES_PER_TOKEN = 2**20, 4096  # a completion: the first plus so many for each token asked for
PIECE_BYTES = 64 * 2**10  # decompressed at a time
NAME = re.compile(r"[a-z-]{1,12}")  # of an encoding
ZLIB_OR_GZIP = 47  # window bits: detect the format


def most_bytes(max_tokens: int) -> int:
    """The longest response to a request for so many tokens, with ids, log-probs and everything around them."""
    return RESPONSE_BYTES + BYTES_PER_TOKEN * max_tokens


async def read_text(response: httpx.Response, *, limit: int) -> str:
    """The body of a response, or its first `limit` bytes."""
    pieces: list[bytes] = []
    room = limit
    async for data in _decoded(response):
        pieces.append(data[:room])
        room -= len(data)
        if room <= 0:
            break
    return b"".join(pieces).decode(errors="replace")


async def read_bytes(response: httpx.Response, *, limit: int) -> AsyncIterator[bytes]:
    """The body of a response in pieces. Raises `EngineBusy` beyond `limit` bytes."""
    left = limit
    async for data in _decoded(response):
        left -= len(data)
        if left < 0:
            raise EngineBusy(f"the server sent more than {limit:,} bytes")
        yield data


async def read_lines(response: httpx.Response, *, limit: int) -> AsyncIterator[str]:
    """Lines that end with a newline. Text may contain other characters that Python treats as line breaks."""
    line: list[bytes] = []  # pieces of the line that has not ended yet
    size = 0
    async for data in read_bytes(response, limit=limit):
        *ended, rest = data.split(b"\n")
        for part in ended:
            yield b"".join([*line, part]).decode(errors="replace")
            line, size = [], 0
        line.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise EngineBusy(f"the server sent a line of more than {MAX_LINE_BYTES:,} bytes")
    yield b"".join(line).decode(errors="replace")


async def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        async for data in response.aiter_raw():
            yield data
    elif encoding in ("gzip", "x-gzip", "deflate"):
        unpacker = zlib.decompressobj(ZLIB_OR_GZIP)
        async for data in response.aiter_raw():
            for piece in _unpacked(unpacker, data):
                yield piece
    else:
        name = encoding if NAME.fullmatch(encoding) else "an unknown encoding"
        raise EngineBusy(f"the server compressed its response with {name}, which was not asked for")


def _unpacked(unpacker: zlib._Decompress, data: bytes) -> Iterator[bytes]:  # pyright: ignore[reportPrivateUsage]
    try:
        while data and not unpacker.eof:
            yield unpacker.decompress(data, PIECE_BYTES)
            data = unpacker.unconsumed_tail
    except zlib.error:
        raise EngineBusy("the server sent compressed data that is broken") from None
