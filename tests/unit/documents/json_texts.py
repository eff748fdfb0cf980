"""JSON texts with white space wherever it may be, for properties of the editor and of the scanner."""

from __future__ import annotations

import json

from hypothesis import strategies as st

SPACE = st.sampled_from(["", "", " ", "  ", "\n", "\n  ", "\r\n", "\t", "\n\n    ", " \n\t", " \r\n  \r\n"])
KEYS = st.sampled_from(["a", "b", "c", "runtimes", "nvidia", "é", "\\", "\n"])
NUMBERS = st.sampled_from(["1e3", "0.10", "-0", "12345678901234567890123", "1E+2", "7"])


@st.composite
def spelt(draw: st.DrawFn, depth: int = 0) -> str:
    """Some JSON value with white space wherever it may be."""
    kind = draw(st.integers(0, 5 if depth < 3 else 2))
    if kind == 0:
        return draw(NUMBERS)
    if kind == 1:
        return json.dumps(draw(st.text(max_size=4)), ensure_ascii=draw(st.booleans()))
    if kind == 2:
        return draw(st.sampled_from(["true", "false", "null"]))
    if kind == 3:
        items = [draw(SPACE) + draw(spelt(depth + 1)) + draw(SPACE) for _ in range(draw(st.integers(0, 2)))]
        return f"[{','.join(items) or draw(SPACE)}]"
    return draw(objects(depth + 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 0) -> str:
    keys = draw(st.lists(KEYS, max_size=4, unique=True))
    names = [json.dumps(key, ensure_ascii=draw(st.booleans())) for key in keys]
    members = [f"{draw(SPACE)}{name}{draw(SPACE)}:{draw(SPACE)}{draw(spelt(depth))}{draw(SPACE)}" for name in names]
    return f"{{{','.join(members) or draw(SPACE)}}}"


def encodable(text: str) -> bytes:
    return text.encode(errors="replace")  # draws may hold halves of surrogate pairs


DOCUMENTS = st.builds(lambda lead, body, tail: encodable(lead + body + tail), SPACE, objects(), SPACE)
