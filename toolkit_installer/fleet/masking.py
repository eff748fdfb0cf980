"""Masks secrets in the answers of a capture, with placeholders made with a key. Pure.

Equal values have equal placeholders, so that texts can still be compared. A masked text has as many lines, and parses,
as before: its plan is the plan of the text itself. The same holds for digests of contents, by which the receipt
identifies files: without the key, nobody can try passwords against them.

Each answer is read twice: first to collect all secrets, then to mask these also where programs quote them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import posixpath
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit_installer.documents.changes import sha256
from toolkit_installer.documents.masking import DocumentMasker
from toolkit_installer.engines import registry
from toolkit_installer.fleet.archive import ProgramRun, split_line
from toolkit_installer.fleet.values import CapturedAnswer, CapturedError
from toolkit_installer.node.queries import Secrecy
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER

_ENGINES: Final = frozenset(name for row in registry.ENGINES for name in row.processes)
_ARGUMENTS: Final = "arguments"
_CONTENT: Final = "content"
_MODE, _SIZE = 0, 6
"""Indexes in an encoded `os.stat_result` (values.py)."""


class AnswerMasker:
    """Masks the answers of one capture. `masker` is None to keep secrets; `root` is the node's."""

    def __init__(self, masker: KeyedMasker | None, root: str) -> None:
        self._masker = masker
        self._root = root
        self._payloads: set[str] = set()
        """Roots of payloads: their files are public, and identified by their sizes."""
        self.digests: dict[str, str] = {}
        """Substitutes for the SHA-256 of contents, by the SHA-256 of the masked contents."""
        self._contents: list[tuple[bytes, bytes]] = []

    def collect(self, secrecy: Secrecy, line: str, answer: CapturedAnswer, run: ProgramRun | None) -> None:
        """Collect the secrets in an answer."""
        if self._masker is None:
            return
        if secrecy is Secrecy.PUBLIC:
            self._payloads |= {split_line(line)[0]} - {self._root}
        self._mask_value(self._masker, secrecy, line, answer, run)

    def settle(self) -> None:
        """Prepare for masking, once the secrets of all answers are collected."""
        if self._masker is None:
            return
        self._masker.texts.settle()
        for before, hidden in self._contents:
            if before != hidden:
                self._masker.note_digest(sha256(before))

    def mask(self, secrecy: Secrecy, line: str, answer: CapturedAnswer, run: ProgramRun | None) -> CapturedAnswer:
        """Return an answer as captured. Call `settle` first."""
        masker = self._masker
        if masker is None:
            return answer
        self._contents = []
        made = self._mask_value(masker, secrecy, line, answer, run)
        for before, hidden in self._contents:
            known = sha256(before)
            if masker.mask_digest(known) != known:
                self.digests[sha256(hidden)] = masker.mask_digest(known)
        if made.failure is not None:
            failure = made.failure
            reason, path = masker.texts.words(failure.reason), failure.path
            path = None if path is None else self._mask_name(path)
            hint = None if failure.hint is None else masker.texts.known(failure.hint)
            return CapturedAnswer(None, CapturedError(failure.kind, reason, path, failure.line, hint, failure.number))
        return CapturedAnswer(mask_texts(self._drop_size(line, made.value), self._mask_name, self._mask_document))

    def mask_line(self, line: str) -> str:
        """Return the line of a query's arguments as captured."""
        return self._mask_name(line) if self._masker is not None else line

    def mask_run(self, run: ProgramRun) -> ProgramRun:
        """Return a program run as captured."""
        masker = self._masker
        if masker is None:
            return run
        # an engine's binary is given the flags of the engine; all other words are our own
        is_engine = posixpath.basename(run.words[0]) in _ENGINES
        words = [self._mask_name(word) for word in (masker.texts.arguments(run.words) if is_engine else run.words)]
        return ProgramRun(run.root, tuple(words), tuple(masker.texts.content(text) for text in run.texts))

    def _mask_name(self, text: str) -> str:
        """Return a name, path, identity or digest without secrets."""
        assert self._masker is not None  # noqa: S101  # else nothing is changed
        return self._masker.mask_digests(self._masker.mask_sizes(self._masker.texts.odd(text)))

    def _mask_document(self, text: str) -> str:
        """Return a document with masked values, without the sizes and digests of other files."""
        assert self._masker is not None  # noqa: S101  # else nothing is changed
        return self._masker.mask_digests(self._masker.mask_sizes(text))

    def _mask_value(  # noqa: PLR0911  # one for each form of an answer
        self, masker: KeyedMasker, secrecy: Secrecy, line: str, answer: CapturedAnswer, run: ProgramRun | None
    ) -> CapturedAnswer:
        """Return an answer without the secrets in its own texts."""
        value = answer.value
        if answer.failure is not None or value is None or secrecy in {Secrecy.NONE, Secrecy.PUBLIC}:
            return answer
        if secrecy is Secrecy.JSON:
            return CapturedAnswer(masker.texts.value(value))
        if secrecy is Secrecy.WORDS:
            return CapturedAnswer(value | {_ARGUMENTS: masker.texts.arguments(value[_ARGUMENTS])})
        if run is not None:
            return CapturedAnswer(self._mask_output(masker, run, value))
        if isinstance(value, dict) and isinstance(value.get(_CONTENT), bytes):
            return CapturedAnswer(
                value | {_CONTENT: self._mask_content(masker, str(value.get("path", "")), value[_CONTENT])}
            )
        if isinstance(value, bytes):
            return CapturedAnswer(self._mask_content(masker, split_line(line)[-1], value))
        return CapturedAnswer(masker.texts.document(value) if isinstance(value, str) else value)

    def _mask_content(self, masker: KeyedMasker, path: str, content: bytes) -> bytes:
        """Return a file's content without secrets."""
        if path.endswith(f"/{RECEIPT_FOLDER}/{RECEIPT_FILE}"):
            return masker.mask_receipt(content)
        if sha256(content) in masker.generated:
            return content
        hidden = masker.texts.content(content)
        self._contents.append((content, hidden))
        return hidden

    def _mask_output(self, masker: KeyedMasker, run: ProgramRun, value: dict[str, Any]) -> dict[str, Any]:
        """Return a program's result without secrets: it prints a configuration, or messages."""
        texts = masker.texts
        output, errors = value["output"].decode(errors="surrogateescape"), str(value["errors"])
        is_document = {"config", "show", "generate"} & set(run.words)
        shown = texts.document(output) if is_document else texts.output(output)
        return value | {
            "output": shown.encode(errors="surrogateescape"),
            "errors": texts.words(errors),
        }

    def _drop_size(self, line: str, value: Any) -> Any:
        """Return a file's attributes without its size, from which a secret could be guessed, as from its digest."""
        path = split_line(line)[-1]
        if isinstance(value, dict) and isinstance(known := value.get("identity"), dict) and "size" in known:
            sized = known if self._is_program(line, path) else known | {"size": min(known["size"], 1)}
            return value | {"identity": sized}
        is_status = isinstance(value, list) and len(value) > _SIZE and all(type(each) is int for each in value)
        if not is_status or not stat.S_ISREG(value[_MODE]) or self._is_program(line, path):
            return value
        return [*value[:_SIZE], min(value[_SIZE], 1), *value[_SIZE + 1 :]]

    def _is_program(self, line: str, path: str) -> bool:
        """Return whether a file is part of the toolkit or of its payload, which are public."""
        folders = self._masker.folders if self._masker is not None else ()
        around = any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
        return split_line(line)[0] in self._payloads or (
            around and RECEIPT_FOLDER not in posixpath.dirname(path).split("/")
        )


_LENGTH: Final = 20
"""Hexadecimal digits of a placeholder: enough for all values to have different ones."""
_DIGITS: Final = 12
_SHA256: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_FRAGMENT_FORMS: Final = (("value = ", ""), ('{"value": ', "}"))
"""The texts before and after a value that the receipt has from TOML, or from JSON."""
_RECORDED: Final = frozenset({"before", "first", "written"})
"""Fields of a file's record that contain digests."""
_IDENTITY: Final = re.compile(r'((?:(?<=")|\A)[0-9]+ [0-9]+ )([0-9]+)( [0-9]+ [0-9]+(?=\Z|"))')
"""A watched file's device, inode, size, time and mode (idling.identity), alone or as a text of JSON."""


class KeyedMasker:
    """Makes the placeholders of one capture, or of a set of captures made with the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.texts = DocumentMasker(self._word, self._number)
        self._digests: set[str] = set()
        """SHA-256 of contents that may hold a secret."""
        self.folders: set[str] = set()
        """Folders of the toolkit, by receipts: its programs are public, and identified by their sizes."""
        self.generated: set[str] = set()
        """SHA-256 of files that this program generated, by receipts: they contain no secret."""

    @property
    def key_name(self) -> str:
        """The key's name: captures with the same name have the same placeholders."""
        return self._sign("the key's name")[:_LENGTH]

    def mask_receipt(self, content: bytes) -> bytes:
        """Return a receipt without the parts of engines' files in it, whose digests are masked from now on, too."""
        try:
            return self._receipt(json.loads(content))
        except (ValueError, RecursionError):
            return self.texts.content(content)

    def _receipt(self, said: Any) -> bytes:
        if isinstance(said, dict) and isinstance(folder := said.get("toolkit_folder"), str):
            self.folders.add(folder)
            contents = said.get("contents")
            entries = contents if isinstance(contents, list) else ()
            self.generated.update(str(each.get("sha256")) for each in entries if isinstance(each, dict))
        return json.dumps(self._mask_record(said), indent=2).encode() + b"\n"

    def note_digest(self, digest: str) -> None:
        """Note the SHA-256 of a content that may hold a secret."""
        self._digests.add(digest)

    def mask_digest(self, found: str) -> str:
        """Return the substitute for a SHA-256, or itself if its content holds no secret."""
        return self._sign(found) if found in self._digests else found

    def mask_digests(self, text: str) -> str:
        """Return a text with the digests of contents that may hold a secret masked."""
        return _SHA256.sub(lambda match: self.mask_digest(match[0]), text)

    def mask_sizes(self, text: str) -> str:
        """Return a text with the sizes of watched files masked."""
        return _IDENTITY.sub(lambda match: match[1] + self._number(match[2]) + match[3], text)

    def _mask_record(self, value: Any) -> Any:
        """Return a part of a receipt with the values masked that were in files before: they may be secret."""
        if isinstance(value, list):
            return [self._mask_record(item) for item in value]
        if not isinstance(value, dict):
            return value
        for name in _RECORDED & value.keys():
            said = value[name]
            found = said if isinstance(said, list) else [said.get("sha256")] if isinstance(said, dict) else ()
            self._digests.update(each for each in found if isinstance(each, str))
        path = value.get("path")
        if not isinstance(path, list):
            return {key: self._mask_record(item) for key, item in value.items()}
        keys = tuple(name for name in path if isinstance(name, str))
        return {
            key: self._mask_fragment(item, keys) if key in {"ours", "prior"} and isinstance(item, str) else item
            for key, item in value.items()
        }

    def _mask_fragment(self, text: str, path: tuple[str, ...]) -> str:
        """Return a value from a file, where it was at this path, without secrets."""
        for head, tail in _FRAGMENT_FORMS:
            if text.startswith(head) and text.endswith(tail):
                return head + self.texts.fragment(text[len(head) : len(text) - len(tail)], path) + tail
        return self.texts.fragment(text, path)

    def _word(self, value: str) -> str:
        return f"hidden!{self._sign(value)[:_LENGTH]}"

    def _number(self, value: str) -> str:
        return f"9{int(self._sign(value), 16)}"[:_DIGITS]

    def _sign(self, value: str) -> str:
        return hmac.new(self._key, value.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def mask_texts(value: Any, change: Callable[[str], str], in_bytes: Callable[[str], str]) -> Any:
    """Return a value with `change` applied to each text, and `in_bytes` to the text in bytes."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bytes):
        return in_bytes(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {change(key): mask_texts(item, change, in_bytes) for key, item in value.items()}
    return [mask_texts(item, change, in_bytes) for item in value] if isinstance(value, (list, tuple)) else value
