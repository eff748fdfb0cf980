"""README, CONTRIBUTING and docs/ say what the code says: messages, flags, variables, exit codes, commands, links."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

from toolkit_installer.cli.options import build, resolve
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.model import Kind
from toolkit_installer.cli.options.table import (
    DELETION_TIMEOUT,
    DRIVER_TIMEOUT,
    EACH,
    ENGINE_VERSION,
    HTML,
    KEEP_SECRETS,
    KEY_FILE,
    OPTIONS,
    PAYLOAD,
    STATUS_CHECK,
    STATUS_JSON,
    UNLESS_INSTALLED,
)
from toolkit_installer.engines import registry
from toolkit_installer.errors import ExitCode
from toolkit_installer.settings import EngineName, Program

PROJECT = pathlib.Path(__file__).parents[2]
PACKAGE = PROJECT / "toolkit_installer"
DOCUMENTS = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").glob("*.md")),
]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
OPTIONS_PAGE, EXIT_CODES, TROUBLESHOOTING = (
    (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("options", "exit-codes", "troubleshooting")
)
EVERY_PAGE = "\n".join((PROJECT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
GAP = "…"
"""Stands for what differs from one message to the next, in the documents and in `messages`."""

# --- reading the documents ---


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def section(title: str, text: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert found, f"no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a section's table, head left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted_messages() -> list[str]:
    table = section("Troubleshooting by message", TROUBLESHOOTING)
    quoted = [span for row in rows(table) for span in spans(row[0])]
    quoted += re.findall(r"^\S+Z (?:info|warning|error) +(.*?)(?= \w+=|$)", "\n".join(blocks(README)), re.MULTILINE)
    return quoted


def commands() -> list[list[str]]:
    """Return the words of every line in a block that starts one of the programs."""
    lines = [
        line.removeprefix("$ ").partition(" #")[0].split() for block in blocks(README) for line in block.splitlines()
    ]
    lines = [words[1:] if words[:1] == ["sudo"] else words for words in lines]
    return [
        [pathlib.PurePath(words[0]).name, *words[1:]] for words in lines if words and words[0].startswith(".venv/bin/")
    ]


# --- reading the code ---


@functools.cache
def messages() -> frozenset[str]:
    """Return every text in the code, docstrings aside; what an f-string fills in is a GAP."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if node in docstrings:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values))
    return frozenset(found)


def is_said(quoted: str) -> bool:
    """Tell whether one text of the code has the quoted one's parts, in their order."""
    pattern = re.compile(".*".join(map(re.escape, quoted.split(GAP))), re.DOTALL)
    return any(pattern.search(message) for message in messages())


# --- messages ---


@pytest.mark.parametrize("quoted", sorted(set(quoted_messages())))
def test_a_message_that_the_readme_explains_is_still_printed(quoted: str) -> None:
    assert re.search(r"\w", quoted)
    assert is_said(quoted), f"no text of the code has {quoted!r}"


def test_a_message_that_nothing_prints_is_noticed() -> None:
    assert len(quoted_messages()) > 30
    assert not is_said("the flux compensator is not loaded")
    assert not is_said(f"another instance {GAP} with PIDs {GAP}")


# --- exit codes ---


def test_the_exit_codes_are_those_of_the_code_in_the_words_of_the_help() -> None:
    table = {int(code): meaning for code, meaning, _ in rows(EXIT_CODES)}
    assert table == {code.value: meaning for code, meaning in cli_help.EXIT_CODES.items()}
    assert set(table) == {code.value for code in ExitCode}


# --- options ---

OF_CAPTURES = (KEEP_SECRETS, KEY_FILE, EACH, PAYLOAD, ENGINE_VERSION, HTML)
EVERY = (*OPTIONS, STATUS_CHECK, STATUS_JSON, DRIVER_TIMEOUT, UNLESS_INSTALLED, DELETION_TIMEOUT, *OF_CAPTURES)
OF_DOCKER = {"--rm", "--detach", "--name", "--restart"}
FLAGS = {flag for option in EVERY for flag in option.flags} | {"--help", "--help-all", "--version"} | OF_DOCKER
VARIABLES = {variable for option in EVERY for variable in option.variables}
OF_THE_IMAGE = {
    found
    for script in ("images/build", "images/release.py", "tests/support/audit.py")
    for found in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", (PROJECT / script).read_text(encoding="utf-8"))
}
"""Variables that `make image`, `make release` and `make audit` take."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_flag_that_is_named_exists(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    named = {span.split()[0].partition("=")[0] for span in spans(text) if span.startswith("-")}
    assert named - FLAGS == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_word_that_is_shown_behind_a_flag_is_one_that_it_takes(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    shown = [span.split() for span in spans(text) if span.startswith("--") and " " in span]
    assert document != "docs/options.md" or shown
    for flag, *given in shown:
        option = next(option for option in EVERY if flag in option.flags)
        assert len(given) == 1
        words = given[0].split(",") if option.kind is Kind.ENGINES else given
        assert not option.choices or set(words) <= set(option.choices), f"{flag} {given[0]}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_that_is_named_exists(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    named = {span for span in spans(text) if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", span)}
    assert named - VARIABLES - OF_THE_IMAGE == set()


def test_the_defaults_in_the_table_of_options_are_the_defaults() -> None:
    for flags, purpose, *_ in rows(section("Options people use", OPTIONS_PAGE)):
        for flag in (span.split()[0] for span in spans(flags)):
            option = next(option for option in OPTIONS if flag in option.flags)
            for default in re.findall(r": `?([^`: ]+)`?$", purpose):
                assert option.default == default, flag


# --- commands ---


def test_every_command_that_is_shown_makes_sense_to_the_program() -> None:
    assert len(commands()) >= 4
    for name, *arguments in commands():
        program = Program(name)
        if program is Program.TOOLKIT_INSTALLER:
            assert arguments[0] in cli_help.COMMANDS
            arguments = arguments[1:]  # noqa: PLW2901  # what is left of the line
        values: dict[str, tuple[str, ...]] = {}
        for token in resolve.read_arguments(arguments, resolve.grammar_of(OPTIONS)):
            assert isinstance(token, resolve.Given), token
            values[token.option.name] = (*values.get(token.option.name, ()), token.text)
        build.build(values, {}, program)


def test_every_subcommand_that_is_named_exists() -> None:
    lines = [*spans(EVERY_PAGE), *(" ".join(words) for words in commands())]
    named = {line.split()[1] for line in lines if re.match(r"toolkit-installer [a-z]", line)}
    assert named >= set(cli_help.COMMANDS)
    assert named <= {*cli_help.COMMANDS, *cli_help.ABOUT_THE_PROGRAM, "install"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_is_named_exists(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w./-]+):", makefile, re.MULTILINE))
    code = [*spans(text), *(line for block in blocks(text) for line in block.splitlines())]
    called = [re.match(r"(?:sudo |\w+=\S+ )*make((?: [a-z][a-z0-9-]*)+)", line) for line in code]
    assert {target for call in called if call for target in call[1].split()} <= targets


# --- links and places ---


def slugs(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(text: str) -> Iterator[tuple[str, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_somewhere(document: str) -> None:
    here = PROJECT / document
    for path, anchor in links(here.read_text(encoding="utf-8")):
        target = (here.parent / path) if path else here
        assert target.exists(), path
        assert not anchor or anchor in slugs(target.read_text(encoding="utf-8")), f"{path}#{anchor}"


def tree() -> dict[str, set[str]]:
    """Return the layout that CONTRIBUTING draws: the names under each folder of the project."""
    drawn: dict[str, set[str]] = {}
    folder = ""
    for line in blocks(section("Layout", (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")))[0].splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            drawn[folder].add(name.rstrip("/"))
        else:
            folder = name.rstrip("/")
            drawn[folder] = set()
    return drawn


def test_the_layout_names_every_module_of_the_package_and_no_other() -> None:
    hidden = {"__init__.py", "__pycache__", "py.typed"}
    found = {path.name for path in PACKAGE.iterdir() if path.is_file() or any(path.rglob("*.py"))}  # not bytecode alone
    assert tree()["toolkit_installer"] == found - hidden


def test_every_folder_of_the_layout_is_there() -> None:
    for folder, names in tree().items():
        assert [name for name in names if not (PROJECT / folder / name).exists()] == []


@pytest.mark.parametrize("engine", registry.names())
def test_the_way_of_one_handler_is_ten_files_at_most_and_they_are_there(engine: EngineName) -> None:
    shown = blocks(section("The way of one handler", (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")))[0]
    elsewhere = f"{engine}: in "  # this engine has that in a file that is on the list already
    rows = (line for line in shown.splitlines() if elsewhere not in line and not line.startswith(" "))
    lines = [row.split()[0].replace("NAME", engine) for row in rows]
    assert 0 < len(lines) <= 10  # as many as one keeps in mind
    assert [name for name in lines if not (PACKAGE / name).is_file()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_of_the_project_that_is_named_is_there(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    folders = r"(?:toolkit_installer|tests|locks|engines|node)"
    named = {span for span in spans(text) if re.fullmatch(rf"{folders}/[a-z0-9_/]+(\.\w+)?/?", span)}
    assert [name for name in named if not (PROJECT / name).exists() and not (PACKAGE / name).exists()] == []


# --- who reads it ---


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_line_is_wider_than_a_terminal_tables_aside(document: str) -> None:
    lines = (PROJECT / document).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.split()) <= 1200


def test_the_index_leads_to_every_page() -> None:
    index = PROJECT / "docs" / "README.md"
    listed = {(index.parent / path).resolve() for path, _ in links(index.read_text(encoding="utf-8"))}
    pages = {path.resolve() for path in index.parent.glob("*.md")} - {index.resolve()}
    assert pages - listed == set()
