"""What a client may say, and what it is told otherwise."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.drawing import drawn
from voicechat_mlx.server.protocol import (
    Append,
    CancelResponse,
    Clear,
    Commit,
    CreateResponse,
    Finish,
    ProtocolError,
    SessionUpdate,
    ToolOutput,
    parse,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "session.update", "session": {"a": 1}}, SessionUpdate(session={"a": 1})),
        ({"type": "input_audio_buffer.append", "audio": "AAH/fw=="}, Append(pcm=b"\x00\x01\xff\x7f")),
        ({"type": "input_audio_buffer.append", "audio": ""}, Append(pcm=b"")),
        ({"type": "input_audio_buffer.commit", "event_id": "x"}, Commit(event_id="x")),
        ({"type": "input_audio_buffer.clear"}, Clear()),
        ({"type": "response.create"}, CreateResponse()),
        ({"type": "response.create", "response": {"metadata": {}}}, CreateResponse()),
        ({"type": "response.create", "response": None}, CreateResponse()),
        ({"type": "response.cancel"}, CancelResponse(response_id=None)),
        ({"type": "response.cancel", "response_id": "resp_1"}, CancelResponse(response_id="resp_1")),
        ({"type": "voicechat.finish"}, Finish(extra_seconds=0.0)),
        ({"type": "voicechat.finish", "extra_seconds": 3}, Finish(extra_seconds=3.0)),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "c", "output": "é"},
            },
            ToolOutput(item_id=None, call_id="c", output="é"),
        ),
    ],
)
def test_each_event_is_read(event: dict[str, Any], expected: object) -> None:
    assert parse(json.dumps(event)) == expected


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("NaN", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ("1" * 10_000, "invalid_json", None),
        ("null", "invalid_event", None),
        ("[1]", "invalid_event", None),
        ('"x"', "invalid_event", None),
        ("3", "invalid_event", None),
        ("{}", "invalid_event", "type"),
        ('{"type": 3}', "invalid_event", "type"),
        ('{"type": "input_audio_buffer.commit", "event_id": 3}', "invalid_event", "event_id"),
        ('{"type": "no.such.event"}', "unknown_event", "type"),
        ('{"type": "conversation.item.truncate"}', "unsupported_event", "type"),
        ('{"type": "session.update"}', "missing_parameter", "session"),
        ('{"type": "session.update", "session": []}', "invalid_value", "session"),
        ('{"type": "input_audio_buffer.append"}', "missing_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 3}', "invalid_value", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "A"}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "A*AA"}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "äöü="}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "invalid_audio", "audio"),  # three bytes
        (
            '{"type": "response.create", "response": {"instructions": "sing"}}',
            "unsupported_parameter",
            "response.instructions",
        ),
        ('{"type": "response.create", "response": 3}', "invalid_value", "response"),
        ('{"type": "response.cancel", "response_id": 3}', "invalid_value", "response_id"),
        ('{"type": "conversation.item.create", "item": {"type": "message"}}', "unsupported_item", "item.type"),
        (
            '{"type": "conversation.item.create", "item": {"type": "function_call_output"}}',
            "missing_parameter",
            "item.call_id",
        ),
        ('{"type": "voicechat.finish", "extra_seconds": true}', "invalid_value", "extra_seconds"),
        ('{"type": "voicechat.finish", "extra_seconds": -1}', "invalid_value", "extra_seconds"),
        ('{"type": "voicechat.finish", "extra_seconds": 1e999}', "invalid_value", "extra_seconds"),
        ('{"type": "voicechat.finish", "extra_seconds": 1%s}' % ("0" * 400), "invalid_value", "extra_seconds"),
        ('{"type": "voicechat.finish", "extra_seconds": 61}', "invalid_value", "extra_seconds"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else str(value),
)
def test_what_cannot_be_read_is_named(text: str, code: str, param: str | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_an_error_repeats_the_name_that_the_client_gave_its_event() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse('{"type": "nothing", "event_id": "mine"}')
    assert caught.value.event_id == "mine"


@pytest.mark.parametrize(
    ("output", "result"),
    [('{"hour": 3}', {"hour": 3}), ("3", 3), ("sunny", "sunny"), ("NaN", "NaN"), ("", ""), ("[" * 9999, "[" * 9999)],
)
def test_a_tools_output_is_json_where_it_is_json_and_text_otherwise(output: str, result: object) -> None:
    assert ToolOutput(item_id=None, call_id="c", output=output).result == result


@drawn(200)
@given(st.text() | JSON.map(json.dumps) | st.binary().map(lambda raw: base64.b64encode(raw).decode()))
def test_whatever_comes_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ProtocolError as error:
        assert error.code


@drawn(200)
@given(
    st.sampled_from(["session.update", "input_audio_buffer.append", "response.create", "conversation.item.create"]),
    st.dictionaries(st.sampled_from(["session", "audio", "response", "item", "event_id"]), JSON),
)
def test_fields_of_any_type_are_read_or_refused(type: str, fields: dict[str, Any]) -> None:
    try:
        parse(json.dumps({**fields, "type": type}))
    except ProtocolError as error:
        assert error.code
