"""What TRL hands to a reward function, as plain strings."""

from __future__ import annotations


def text_of(message: object) -> str:
    """The text of one prompt or completion: a string, or chat messages ([{"role", "content"}, ...]).

    Only the last message counts: in a completion it holds the answer, in a prompt the question. Content given as
    parts ([{"type": "text", "text": ...}]) is joined. Anything else is the empty string, never an exception: one odd
    completion must not end a run.
    """
    if isinstance(message, (list, tuple)):
        message = message[-1] if message else ""
    if isinstance(message, dict):
        message = message.get("content")
    if isinstance(message, (list, tuple)):
        message = "".join(str(part.get("text", "")) for part in message if isinstance(part, dict))
    return message if isinstance(message, str) else ""


def texts(messages: list) -> list[str]:
    """`text_of` for each."""
    return [text_of(message) for message in messages]
