"""Speaks HTTP/3 with the proxy: client.py PORT CA. Prints "ok NAME" for each check that passes."""

import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

PORT, CA = int(sys.argv[1]), sys.argv[2]
HOST = "a.example"
TIMEOUT = 20


class Client(QuicConnectionProtocol):
    """A connection; each request has a queue of its events."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.streams = {}

    def quic_event_received(self, event):
        if isinstance(event, StreamReset):
            self.streams[event.stream_id].put_nowait(("reset", event.error_code))
        if isinstance(event, ConnectionTerminated):
            for queue in self.streams.values():
                queue.put_nowait(("closed", event.error_code))
        for found in self.http.handle_event(event):
            if isinstance(found, HeadersReceived):
                self.streams[found.stream_id].put_nowait(("headers", dict(found.headers)))
            if isinstance(found, DataReceived):
                self.streams[found.stream_id].put_nowait(("data", found.data))
            if getattr(found, "stream_ended", False):
                self.streams[found.stream_id].put_nowait(("end", None))

    def start(self, method, path, body=None, authority=HOST, fields=()):
        stream = self._quic.get_next_available_stream_id()
        self.streams[stream] = asyncio.Queue()
        pseudo = {"method": method, "scheme": "https", "authority": authority, "path": path}
        headers = [(b":" + name.encode(), value.encode()) for name, value in pseudo.items()]
        self.http.send_headers(stream, headers + list(fields), end_stream=body is None)
        if body is not None:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        return stream

    async def answer(self, stream):
        """Status, fields and body; or how the stream failed."""
        head, body = None, b""
        while True:
            kind, value = await asyncio.wait_for(self.streams[stream].get(), TIMEOUT)
            if kind == "headers" and head is None:
                head = value
            elif kind == "data":
                body += value
            elif kind == "end":
                return head, body
            elif kind in ("reset", "closed"):
                return kind, value


def connection(name):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=name)
    configuration.load_verify_locations(CA)
    return connect(
        "127.0.0.1", PORT, configuration=configuration, create_protocol=Client, local_port=0
    )


def check(name, passed, seen=""):
    print("ok" if passed else "FAILED", name, "" if passed else repr(seen))


async def main():
    async with connection(HOST) as client:
        head, body = await client.answer(client.start("GET", "/"))
        check("get", head[b":status"] == b"200" and body == b"", head)
        announced = f'h3=":{PORT}"; ma=2592000'.encode()
        check("alternative service", head[b"alt-svc"] == announced, head)

        sent = bytes(range(256)) * 8192
        head, body = await client.answer(client.start("POST", "/", sent))
        check("two MiB each way", head[b":status"] == b"200" and body == sent, len(body))

        streams = [client.start("POST", "/", b"%d" % n * 1000) for n in range(50)]
        answers = [await client.answer(stream) for stream in streams]
        expected = [b"%d" % n * 1000 for n in range(50)]
        check("concurrent requests", [body for _, body in answers] == expected)

        head, _ = await client.answer(client.start("GET", "/", authority="b.example"))
        check("unknown host", head[b":status"] == b"404" and head[b"server"] == b"jaco", head)

    try:
        async with asyncio.timeout(TIMEOUT):
            async with connection("b.example"):
                check("name without a certificate", False)
    except ConnectionError as refused:
        check("name without a certificate", True, refused)


asyncio.run(main())
