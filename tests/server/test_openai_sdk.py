"""The public `openai` package against the server, unchanged: what its users write works here."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import openai
import pytest
import soxr
from openai import AsyncOpenAI
from openai.types.realtime import (
    ConversationItemAdded,
    InputAudioBufferCommittedEvent,
    RealtimeErrorEvent,
    ResponseAudioDeltaEvent,
    ResponseCreatedEvent,
    ResponseDoneEvent,
    SessionCreatedEvent,
    SessionUpdatedEvent,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests import models
from tests.scripted import spelt
from tests.server.answering import BOS, EOS, PAD, saying, words
from tests.server.client import heard, pcm16
from voicechat_mlx.offline import generate
from voicechat_mlx.server.access import Access
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

pytestmark = pytest.mark.filterwarnings("default")  # the SDK's own are not ours
WAIT_SECONDS = 60


def sdk(url: str, key: str = "anything") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", websocket_base_url=f"{url.replace('http', 'ws', 1)}/v1", api_key=key)


def run(conversation: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            return await conversation

    return asyncio.run(bounded())


def test_a_question_is_asked_and_answered_as_in_openais_examples() -> None:
    text = [PAD, PAD, PAD, BOS, *words("Noon."), EOS]
    question = base64.b64encode(pcm16(models.speech(0.24, sample_rate=24000))).decode()

    async def ask(url: str) -> list[Any]:
        seen: list[Any] = []
        async with sdk(url) as client, client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(
                session={
                    "type": "realtime",
                    "instructions": "Be concise.",
                    "output_modalities": ["audio"],
                    "audio": {
                        "input": {
                            "format": {"type": "audio/pcm", "rate": 24000},
                            "turn_detection": None,
                            "transcription": {"model": "gpt-4o-transcribe"},
                        },
                        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin"},
                    },
                }
            )
            await connection.input_audio_buffer.append(audio=question)
            await connection.input_audio_buffer.commit()
            await connection.response.create()
            async for event in connection:
                seen.append(event)
                if event.type == "response.done":
                    return seen
        return seen

    with running(Service(load=saying(text), model_name="scripted")) as url:
        seen = run(ask(url))
    seen = [event for event in seen if event.type != "voicechat.loading"]
    kinds = [type(event) for event in seen]
    assert kinds[:2] == [SessionCreatedEvent, SessionUpdatedEvent]
    assert seen[1].session.instructions == "Be concise."
    for kind in (InputAudioBufferCommittedEvent, ConversationItemAdded, ResponseCreatedEvent, ResponseAudioDeltaEvent):
        assert kind in kinds
    spoken = "".join(event.delta for event in seen if event.type == "response.output_audio_transcript.delta")
    assert spoken == "Noon."
    assert kinds[-1] is ResponseDoneEvent
    response = seen[-1].response
    assert response.status == "completed"
    assert response.output[0].content[0].transcript == "Noon."


def test_through_the_sdk_too_online_equals_offline(url: str) -> None:
    pcm = pcm16(models.speech(0.4, sample_rate=24000))
    expected = generate(models.hasty(), soxr.resample(heard(pcm), 24000, 16000), extra_decoding_seconds=0.0)

    async def talk() -> tuple[Any, bytes]:
        sound = b""
        async with sdk(url) as client, client.realtime.connect(model="voicechat") as connection:
            await connection.send({"type": "session.update", "session": {"voicechat": {"include": ["ids", "codes"]}}})
            for begin in range(0, len(pcm), 4800):
                await connection.input_audio_buffer.append(audio=base64.b64encode(pcm[begin : begin + 4800]).decode())
            await connection.send({"type": "voicechat.finish"})
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    sound += base64.b64decode(event.delta)
                if event.type == "voicechat.finished":
                    last = event.model_dump()
        return last, sound

    last, sound = run(talk())
    assert last["text_tokens"] == expected.text_tokens.tolist()
    assert last["audio_codes"] == expected.audio_codes.tolist()
    outside = np.clip(soxr.resample(expected.audio, 22050, 24000), -1, 32767 / 32768)
    assert np.abs(heard(sound) - outside).max() < 1e-4


def test_a_function_is_called_and_its_result_taken() -> None:
    call = spelt('[{"name": "get_time", "arguments": {"zone": "UTC"}}]')
    tool = {"type": "function", "name": "get_time", "description": "Tells the time", "parameters": {"type": "object"}}

    async def ask(url: str) -> tuple[Any, Any]:
        async with sdk(url) as client, client.realtime.connect(model="voicechat") as connection:
            await connection.session.update(session={"type": "realtime", "tools": [tool]})
            await connection.response.create()
            async for event in connection:
                if event.type == "response.function_call_arguments.done":
                    asked = event
                if event.type == "response.done":
                    item = {"type": "function_call_output", "call_id": asked.call_id, "output": json.dumps({"hour": 3})}
                    await connection.conversation.item.create(item=item)
                    await connection.response.create()
                if event.type == "conversation.item.done" and event.item.type == "function_call_output":
                    return asked, event.item
        raise AssertionError("the result was not taken")

    load = saying([PAD] * len(call), call)
    with running(Service(load=load, model_name="scripted")) as url:
        asked, item = run(ask(url))
    assert json.loads(asked.arguments) == {"zone": "UTC"}
    assert (item.call_id, json.loads(item.output)) == (asked.call_id, {"hour": 3})


def test_an_error_and_a_busy_server_are_what_the_sdk_expects(url: str) -> None:
    async def wrong() -> Any:
        async with sdk(url) as client, client.realtime.connect(model="voicechat") as connection:
            await connection.input_audio_buffer.commit()
            async for event in connection:
                if event.type == "error":
                    return event
        return None

    async def busy(url: str) -> tuple[Any, int | None]:
        async with (
            sdk(url) as client,
            client.realtime.connect(model="voicechat"),
            client.realtime.connect(model="voicechat") as second,
        ):
            event = await second.recv()
            with pytest.raises(ConnectionClosed) as closed:
                await second.recv()
            return event, closed.value.rcvd.code if closed.value.rcvd else None

    error = run(wrong())
    assert isinstance(error, RealtimeErrorEvent) and error.error.code == "input_audio_buffer_commit_empty"
    with running(Service(load=models.hasty, model_name="m", limits=Limits(max_sessions=1))) as other:
        event, code = run(busy(other))
    assert (event.error.code, code) == ("server_busy", 1013)


def test_the_sdks_api_key_is_the_token() -> None:
    async def first_event(url: str, key: str) -> str:
        async with sdk(url, key) as client, client.realtime.connect(model="voicechat") as connection:
            event = await connection.recv()
            return str(event.type)

    async def names(url: str, key: str) -> list[str]:
        async with sdk(url, key) as client:
            return [model.id async for model in client.models.list()]

    with running(Service(load=models.hasty, model_name="m", access=Access(token="secret"))) as url:
        assert run(first_event(url, "secret")) in ("session.created", "voicechat.loading")
        assert run(names(url, "secret")) == ["m"]
        with pytest.raises((InvalidStatus, openai.OpenAIError)):
            run(first_event(url, "wrong"))
        with pytest.raises(openai.AuthenticationError):
            run(names(url, "wrong"))
