"""Streams to a server, against grpcio's own."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.conftest import eventually
from tests.proxy.transport.conftest import LoopThread
from tidegate_proxy.transport import AsyncStream, CallFailed, Channel

METHOD = "/test.Service/Stream"
Handler = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


@pytest.fixture
def served(loop: LoopThread) -> Iterator[Callable[[Handler], Channel]]:
    """`served(handler)`: a channel to grpcio's server, whose streams are that function."""
    servers: list[grpc.Server] = []
    channels: list[Channel] = []

    def made(handler: Handler) -> Channel:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        handlers = {"Stream": grpc.stream_stream_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
        servers.append(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        channels.append(loop.call(lambda: Channel(f"127.0.0.1:{port}")))
        return channels[-1]

    yield made
    for channel in channels:
        loop.run(channel.close())
    for server in servers:
        server.stop(None).wait()


async def _all(stream: AsyncStream) -> list[bytes]:
    messages = []
    while (message := await stream.read()) is not None:
        messages.append(message)
    return messages


def test_messages_come_back_in_order(loop: LoopThread, served: Callable[[Handler], Channel]) -> None:
    channel = served(lambda messages, _context: (message * 2 for message in messages))
    sent = [str(number).encode() * number for number in range(300)] + [bytes(3 << 20), b""]

    async def talk() -> list[bytes]:
        stream = AsyncStream(channel, METHOD)
        reading = asyncio.ensure_future(_all(stream))
        for message in sent:
            await stream.write(message)
        stream.half_close()
        return await reading

    assert loop.run(talk()) == [message * 2 for message in sent]


def test_a_stream_may_end_without_a_message(loop: LoopThread, served: Callable[[Handler], Channel]) -> None:
    channel = served(lambda messages, _context: iter(list(messages)))

    async def talk() -> list[bytes]:
        stream = AsyncStream(channel, METHOD)
        stream.half_close()
        return await _all(stream)

    assert loop.run(talk()) == []


def test_metadata_goes_along_and_a_status_comes_after_what_was_sent_before_it(
    loop: LoopThread, served: Callable[[Handler], Channel]
) -> None:
    seen: dict[str, object] = {}
    ended = threading.Event()

    def handler(_messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.set)
        seen.update(context.invocation_metadata())
        yield b"one"
        yield b"two"
        context.abort(grpc.StatusCode.NOT_FOUND, "größer\n100 %")

    channel = served(handler)
    got: list[bytes | None] = []

    async def talk() -> None:
        stream = AsyncStream(channel, METHOD, [("token", "abc"), ("trace-bin", b"\0\xff")])
        await asyncio.to_thread(ended.wait, 30)  # all of it is on its way by now, and none is lost
        got.extend([await stream.read(), await stream.read()])
        await stream.read()

    with pytest.raises(CallFailed) as failed:
        loop.run(talk())
    assert (failed.value.code, failed.value.details) == (grpc.StatusCode.NOT_FOUND, "größer\n100 %")
    assert got == [b"one", b"two"]
    assert (seen["token"], seen["trace-bin"]) == ("abc", b"\0\xff")


def test_very_many_small_messages(loop: LoopThread, served: Callable[[Handler], Channel]) -> None:
    sent = threading.Event()

    def handler(_messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(5000):
            if number == 4000:
                sent.set()
            yield b"x"

    channel = served(handler)
    over: list[grpc.StatusCode] = []
    got: list[bytes] = []

    async def talk() -> None:
        ended = asyncio.get_running_loop().create_future()
        stream = channel.stream(METHOD, lambda code, _details: ended.set_result(code))

        def received(message: bytes) -> None:
            got.append(message)
            stream.receive(received)  # at once: the next may be there already

        await asyncio.to_thread(sent.wait, 30)  # what is there by now is handed over at once
        stream.receive(received)
        over.append(await ended)

    loop.run(talk())
    assert over == [grpc.StatusCode.OK]
    assert len(got) == 5000


def test_giving_up_reaches_the_server(loop: LoopThread, served: Callable[[Handler], Channel]) -> None:
    left, arrived = threading.Event(), threading.Event()

    def handler(_messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(left.set)
        arrived.set()
        assert left.wait(30)
        yield b""

    channel = served(handler)

    async def talk() -> None:
        stream = AsyncStream(channel, METHOD)
        await asyncio.to_thread(arrived.wait, 30)
        asyncio.get_running_loop().call_soon(stream.cancel)
        await stream.read()

    with pytest.raises(CallFailed) as failed:
        loop.run(talk())
    assert failed.value.code is grpc.StatusCode.CANCELLED
    assert left.wait(30)


def test_time_limits_are_kept(loop: LoopThread, served: Callable[[Handler], Channel]) -> None:
    release = threading.Event()
    remaining: list[float | None] = []

    def handler(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        remaining.append(context.time_remaining())
        yield next(messages)
        release.wait(30)

    channel = served(handler)

    async def talk() -> list[bytes]:
        stream = AsyncStream(channel, METHOD, timeout_s=1.0)
        await stream.write(b"x")
        return await _all(stream)

    with pytest.raises(CallFailed) as failed:
        loop.run(talk())
    release.set()
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert all(seen is not None and seen < 1.1 for seen in remaining)  # none, where it did not come in time


def test_a_server_that_reads_nothing_holds_the_writer_back(
    loop: LoopThread, served: Callable[[Handler], Channel]
) -> None:
    release = threading.Event()

    def handler(_messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        release.wait(30)
        yield from ()

    channel = served(handler)
    sent = 0

    async def talk() -> None:
        nonlocal sent
        stream = AsyncStream(channel, METHOD)
        for _ in range(100):
            await stream.write(bytes(1 << 20))
            sent += 1

    writing = asyncio.run_coroutine_threadsafe(talk(), loop.loop)
    eventually(lambda: sent and _stands_still(lambda: sent), "a writer that is held back")
    release.set()
    assert sent < 50
    writing.result(30)  # the stream is over: nothing is waited for


def test_a_reader_that_reads_nothing_holds_the_server_back(
    loop: LoopThread, served: Callable[[Handler], Channel]
) -> None:
    sent = 0

    def handler(_messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield bytes(1 << 20)

    channel = served(handler)

    async def begin() -> AsyncStream:
        return AsyncStream(channel, METHOD)

    stream = loop.run(begin())
    eventually(lambda: sent > 1 and _stands_still(lambda: sent), "a server that is held back")
    assert sent < 50
    assert len(loop.run(_all(stream))) == 100


def test_a_server_that_stops_ends_its_streams(loop: LoopThread) -> None:
    def handler(messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from messages

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"Stream": grpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = loop.call(lambda: Channel(f"127.0.0.1:{port}"))

    async def talk() -> None:
        stream = AsyncStream(channel, METHOD)
        await stream.write(b"x")
        assert await stream.read() == b"x"
        server.stop(None)
        await stream.read()

    try:
        with pytest.raises(CallFailed) as failed:
            loop.run(talk())
        assert failed.value.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    finally:
        loop.run(channel.close())
        server.stop(None).wait()


def _stands_still(count: Callable[[], int]) -> bool:
    before = count()
    time.sleep(0.2)
    return count() == before
