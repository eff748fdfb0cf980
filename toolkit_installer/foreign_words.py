"""Words that may have values of other people's files in them, as people may see them.

Whatever this process has read and hides (documents/hiding.py) is also hidden where a program, or an error, quotes it.
"""

from __future__ import annotations

from toolkit_installer.documents import hiding
from toolkit_installer.node import heard

_OWN = ("/.toolkit-installer/receipt.json", "/.config/nvidia-container-runtime/config.toml")
"""How the paths of files end that this program wrote: words of theirs, such as names of files, are in its sentences."""


def of_program(text: str) -> str:
    """Return the words of a program as they may be shown: without hidden values, and without parts of them."""
    return _learnt().words(text)


def own(text: str) -> str:
    """Return a sentence of this program's as it may be shown: without hidden values that it quotes as a whole."""
    return _learnt().known(text)


def _learnt() -> hiding.Hiding:
    """Return what is hidden from people, with all that was read by now."""
    people = hiding.Hiding()
    for path, content in tuple(heard.files.items()):
        if not path.endswith(_OWN):
            people.content(content)
    for words in tuple(heard.commands.values()):
        people.arguments(words)
    for variables in tuple(heard.variables.values()):
        people.value(dict(variables))
    people.settle()
    return people
