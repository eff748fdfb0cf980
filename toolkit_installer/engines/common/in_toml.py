"""Values of engines' files in TOML's syntax, for the receipt."""

from __future__ import annotations

from typing import Any

from toolkit_installer.documents import toml_document, toml_values

_VALUE = "value"


def write_value(value: Any) -> str:
    """Return a value as TOML."""
    return f"{_VALUE} = {toml_values.write(value)}"


def read_value(text: str) -> Any:
    """Return the value that was written. Raises DocumentError."""
    return toml_document.parse(text.encode())[_VALUE]
