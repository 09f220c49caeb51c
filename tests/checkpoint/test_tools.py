"""Tool calls through the session's own interface, in voices that the model was never trained on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import voicechat_mlx as vc
from reference.training import content
from reference.training.heldout import Case, read_cases
from tests.checkpoint.heldout import HELDOUT, recording

ANSWER_SECONDS = 8.0
"""Silence after the question: the call, the result (one id a frame) and the answer take up to 7 s."""
CASES = [case for case in read_cases(HELDOUT) if case.kind == "tools"]


def between(text: str, tag: str) -> Any:
    """The JSON between <TAG> and </TAG>."""
    return json.loads(text.removeprefix(f"<{tag}>").removesuffix(f"</{tag}>"))


def result_behind(case: Case) -> Any:
    """What the tool must have said for the answer that the case expects."""
    outcomes = [outcome for known in content.tool_questions() if known.text == case.turns[0].question
                for outcome in known.outcomes]  # fmt: skip
    [response] = [response for response, answers in outcomes if answers["full"] == case.turns[0].answer]
    [result] = between(response, "TOOL_RESPONSE")
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.transcript)
def test_the_right_tool_is_called_once_and_its_result_becomes_the_answer(model: vc.VoiceChat, case: Case) -> None:
    calls: list[vc.ToolCall] = []

    def on_tool(call: vc.ToolCall) -> Any:
        calls.append(call)
        return result_behind(case)

    session = vc.Session(model, "", tools=between(case.prompt, "AVAILABLE_TOOLS"), on_tool=on_tool)
    silence = np.zeros(round(16000 * ANSWER_SECONDS), np.float32)
    events = [*session.push(np.concatenate([recording(case.file), silence])), *session.finish()]
    assert [{"name": call.name, "arguments": call.arguments} for call in calls] == between(
        case.turns[0].call, "TOOLCALL"
    )
    assert "".join(event.text for event in events if isinstance(event, vc.TextDelta)) == case.turns[0].answer


def test_there_are_calls_of_both_tools_and_one_that_fails() -> None:
    assert {json.dumps(between(case.turns[0].call, "TOOLCALL"))[:25] for case in CASES} >= {
        '[{"name": "get_time", "ar',
        '[{"name": "get_weather", ',
    }
    assert {"error": "failed"} in [result_behind(case) for case in CASES]
