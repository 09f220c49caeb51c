"""How tools are spelt: the offer in the prompt, the calls, the response. Text in, text out.

<AVAILABLE_TOOLS>[{"description": …, "name": …, "parameters": {…}}, …]</AVAILABLE_TOOLS>
<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>         arguments may also be JSON inside a string
<TOOL_RESPONSE>[result, …]</TOOL_RESPONSE>                      one result for each call, in the order of the calls
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from voicechat_mlx.errors import CallFault, InputError, ToolError
from voicechat_mlx.text import LONE_SURROGATE

TAGS = tuple(f"<{slash}{tag}>" for tag in ("AVAILABLE_TOOLS", "TOOLCALL", "TOOL_RESPONSE") for slash in ("", "/"))
CALL = re.compile(r"\s*<TOOLCALL>(.*)</TOOLCALL>\s*", re.DOTALL)
FAILED = '{"error": "failed"}'
"""What the model is told in place of a result; why it failed is the caller's business."""
LONGEST_QUOTE = 120
QUOTES = reprlib.Repr()
QUOTES.maxstring = QUOTES.maxother = 80
OPENAI_EXTRAS = frozenset(("type", "strict"))
"""Keys of OpenAI's tool descriptions that say nothing to this model."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call as the model spelt it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What stands in a call's place when it cannot be made."""

    reason: CallFault
    text: str


class Spelling:
    r"""Writes JSON that cannot be taken for anything but text.

    A result may hold `</TOOL_RESPONSE>` or `</s>`, which would end the response, or the talk. The first letter of such
    a word is written as JSON's `\uXXXX`, which means the same.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        words = {*TAGS, *(token for token in special_tokens if len(token) > 1)}
        self._reserved = re.compile(f"(?={'|'.join(map(re.escape, sorted(words)))}).", re.DOTALL)

    def json(self, value: object, *, sort_keys: bool = False) -> str:
        """One line. Raises ToolError (`not_json`) for what JSON cannot say."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys)
        except Exception as error:  # a value's own methods may raise anything
            raise ToolError(
                f"{quote(value)} is not JSON ({quote(error)}); give objects, lists, text, numbers", "not_json"
            ) from None
        return self._reserved.sub(_escaped, LONE_SURROGATE.sub(_escaped, text))


def check_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the caller describes them → with exactly description, name and parameters. Raises InputError."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InputError(f"tools is {quote(tools)}; give a list of objects with name, description and parameters")
    checked = [_check_tool(tool) for tool in tools]
    for name, count in Counter(tool["name"] for tool in checked).items():
        if count > 1:
            raise InputError(f"tools has two tools named {quote(name)}; give each its own name")
    return checked


def _check_tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InputError(f"tools holds {quote(tool)}; each tool is an object with name, description and parameters")
    found = {"description": "", "parameters": {}, **{key: tool[key] for key in tool if key not in OPENAI_EXTRAS}}
    unknown = sorted(map(str, found.keys() - {"description", "name", "parameters"}))
    if unknown or tool.get("type", "function") != "function":
        raise InputError(
            f"tool {quote(tool)} has the unknown {(unknown or ['type'])[0]}; give name, description, parameters"
        )
    if not isinstance(found.get("name"), str) or not found["name"].strip():
        raise InputError(f"tool {quote(tool)} has no name; give one, a text")
    if not isinstance(found["description"], str) or not isinstance(found["parameters"], Mapping):
        raise InputError(f"tool {quote(found['name'])} needs a text as description and an object as parameters")
    return found


def offer(prompt: str | None, tools: Sequence[Mapping[str, Any]], spelling: Spelling) -> str | None:
    """The system prompt, then a space, then the tools with sorted keys; without tools the prompt alone.

    Raises InputError when a description is not JSON.
    """
    if not tools:
        return prompt
    try:
        listed = f"<AVAILABLE_TOOLS>{spelling.json(list(tools), sort_keys=True)}</AVAILABLE_TOOLS>"
    except ToolError as error:
        raise InputError(f"tools cannot be written into the prompt: {error}") from None
    return f"{prompt} {listed}" if prompt and prompt.strip() else listed


def read_calls(text: str, names: frozenset[str] | None, most: int) -> list[Call | Fault]:
    """The text between the call markers → its calls, a `Fault` in the place of each that cannot be made.

    A text that is no list of calls is one fault, and so is one of more than `most`. `names` None allows every tool.
    """
    found = CALL.fullmatch(text)
    if found is None:
        return [Fault(reason="malformed", text=f"a call reads {quote(text)} instead of <TOOLCALL>[…]</TOOLCALL>")]
    try:
        listed = _parse(found[1])
    except ValueError as error:
        return [Fault(reason="malformed", text=f"a call holds {quote(found[1])}, which is not JSON ({error})")]
    if not isinstance(listed, list) or not listed:
        return [Fault(reason="malformed", text=f"a call holds {quote(found[1])} instead of a list of calls")]
    if len(listed) > most:
        return [Fault(reason="too_many", text=f"{len(listed)} tools were called at once; {most} are allowed")]
    return [_read_call(call, names) for call in listed]


def _read_call(call: object, names: frozenset[str] | None) -> Call | Fault:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return Fault(reason="malformed", text=f"a call is {quote(call)}, which has no name")
    name, arguments = call["name"], call.get("arguments", {})
    if names is not None and name not in names:
        return Fault(reason="unknown_tool", text=f"the model called {quote(name)}, which is not one of its tools")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # stays text, which is refused below
            arguments = _parse(arguments or "{}")
    if not isinstance(arguments, dict):
        return Fault(reason="malformed", text=f"{quote(name)} was called with {quote(arguments)} instead of an object")
    return Call(name=name, arguments=arguments)


def response(results: Iterable[str]) -> str:
    """Results, each already JSON → the text that is written into the function channel."""
    return f"<TOOL_RESPONSE>[{', '.join(results)}]</TOOL_RESPONSE>"


def quote(value: object) -> str:
    """A value in a message: one line, not too long, whatever it is."""
    try:
        shown = QUOTES.repr(value)
    except Exception:  # as of a whole number of 5 000 digits
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= LONGEST_QUOTE else f"{shown[:LONGEST_QUOTE]}…"


def _parse(text: str) -> Any:
    """Strict JSON. Raises ValueError for everything else, too deep a nesting included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
