"""The thread that looks for notes: it says that there is something, and disturbs nobody where there is nothing."""

import asyncio
import socket

import pytest

from advisor.server.watcher import LOOK_S, Watcher


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def play(story):
    async def whole():
        found = asyncio.Semaphore(0)
        watcher = Watcher(found.release)
        try:
            await story(watcher, found)
        finally:
            watcher.end()

    asyncio.run(whole())


async def silent(found):
    """Whether nothing is found for some looks' time."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(found.acquire(), 10 * LOOK_S)


def test_what_has_come_is_told_until_it_is_read(pair):
    ours, theirs = pair

    async def story(watcher, found):
        watcher.watch(ours.fileno())
        watcher.begin()
        for _ in range(3):
            theirs.send(b"note")
            await asyncio.wait_for(found.acquire(), 10)
            await asyncio.wait_for(found.acquire(), 10)  # nobody has read it
            ours.recv(100)
            await asyncio.sleep(10 * LOOK_S)
            while not found.locked():  # told before it was read
                await found.acquire()
            await silent(found)

    play(story)


def test_nothing_is_told_before_it_begins_and_after_it_ended(pair):
    ours, theirs = pair
    theirs.send(b"note")

    async def story(watcher, found):
        watcher.watch(ours.fileno())
        await silent(found)
        watcher.begin()
        await asyncio.wait_for(found.acquire(), 10)
        watcher.end()
        await asyncio.sleep(10 * LOOK_S)
        while not found.locked():
            await found.acquire()
        await silent(found)

    play(story)


def test_a_connection_that_is_gone_is_told_and_can_be_forgotten(pair):
    ours, theirs = pair

    async def story(watcher, found):
        watcher.watch(ours.fileno())
        watcher.begin()
        theirs.close()
        await asyncio.wait_for(found.acquire(), 10)
        watcher.forget(ours.fileno())
        watcher.forget(ours.fileno())  # known to be gone already
        await asyncio.sleep(10 * LOOK_S)
        while not found.locked():
            await found.acquire()
        await silent(found)

    play(story)
