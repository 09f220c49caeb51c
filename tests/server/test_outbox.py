"""What waits to be sent: its order, its end, and who has to wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from voicechat_mlx.server.metrics import Metrics
from voicechat_mlx.server.outbox import Close, Outbox

END = Close(code=1000, reason="finished")
BROKEN = Close(code=1011, reason="internal_error")


async def emptied(outbox: Outbox) -> list[str | Close]:
    found = [await outbox.get()]
    while not isinstance(found[-1], Close):
        found.append(await outbox.get())
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def test_nothing_leaves_before_the_greeting_which_comes_first() -> None:
    async def work() -> list[str | Close]:
        outbox = Outbox(100)
        outbox.put("b")
        waiting = asyncio.create_task(emptied(outbox))
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.release(["greeting", "a"])
        outbox.close(END)
        outbox.put("too late")
        return await waiting

    assert run(work()) == ["greeting", "a", "b", END]


def test_a_close_with_a_reason_takes_the_place_of_all_that_waits() -> None:
    async def work() -> list[str | Close]:
        outbox = Outbox(100)
        outbox.put("a")
        outbox.close(BROKEN, instead="why")
        outbox.close(END)
        return await emptied(outbox)

    assert run(work()) == ["why", BROKEN]


def test_who_waits_for_room_goes_on_when_enough_was_taken() -> None:
    async def work() -> None:
        outbox = Outbox(10)
        outbox.release([])
        for text in ("12345", "67890", "x"):
            await outbox.room()
            outbox.put(text)
        assert outbox.is_full and outbox.bytes == 11
        waiting = asyncio.create_task(outbox.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await outbox.get() == "12345"
        await waiting
        assert outbox.bytes == 6

    run(work())


def test_frames_are_counted_into_buckets_by_their_mean_time() -> None:
    metrics = Metrics()
    metrics.count_frames(1, 0.005)
    metrics.count_frames(2, 0.1)  # 50 ms each
    metrics.count_frames(1, 1.0)
    metrics.count_frames(0, 0.001)
    lines = metrics.render({"sessions": ("How many.", 3)}).splitlines()
    assert "voicechat_sessions 3" in lines
    for expected in ('le="0.005"} 1', 'le="0.04"} 1', 'le="0.08"} 3', 'le="0.32"} 3', 'le="+Inf"} 4'):
        assert f"voicechat_frame_seconds_bucket{{{expected}" in lines
    assert "voicechat_frame_seconds_sum 1.106" in lines
    assert "voicechat_frame_seconds_count 4" in lines
