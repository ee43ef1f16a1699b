"""docs/cli.md is what the commands say of themselves. To write it again: python tests/commands/test_reference.py"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from ledger.commands import EXIT_CODES
from ledger.commands import ledger as root

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

PREFACE = """# The command line

Written from the commands' own help by `python tests/commands/test_reference.py`; a change belongs there, not here.

Data goes to stdout, words and errors to stderr. Postgres is found as psql finds it: `--dsn`, `LEDGER_DSN`,
`DATABASE_URL`, or libpq's own variables and files. Redis is `--redis`, `LEDGER_REDIS_URL` or `REDIS_URL`. Where an id
may be `-`, ids are read from stdin. With `-o json` an error is one JSON object on stderr, too: `exit_code`, `type`,
`message`, `hint`, and for a refusal its `code` and `detail`. What a command prints with `-o json` has the shape that
[cli.schemas.json](cli.schemas.json) names.
"""


def page() -> str:
    """The whole page, as Markdown."""
    ctx = click.Context(root, info_name="ledger", help_option_names=["-h", "--help"])
    parts = [PREFACE, "## Global options\n", "They stand before a command, after it, or in between.\n", *_options(ctx)]
    parts += ["", *_paragraph(EXIT_CODES.replace("Exit codes:", "## Exit codes")), ""]
    for child in _children(ctx):
        parts += _command(child, level=2)
    return "\n".join(parts).rstrip() + "\n"


def _children(ctx: click.Context) -> Iterator[click.Context]:
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            assert command is not None
            yield click.Context(command, parent=ctx, info_name=name)


def _command(ctx: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {ctx.command_path}\n"
    if not isinstance(ctx.command, click.Group):
        usage = " ".join(ctx.command.collect_usage_pieces(ctx))
        # Older releases of click put an optional choice into brackets twice.
        yield f"    {ctx.command_path} {usage.replace('[[', '[').replace(']]', ']')}\n"
    for paragraph in re.split(r"\n\n|\n(?=\x08\n)", inspect.cleandoc(ctx.command.help or "")):
        yield from _paragraph(paragraph)
        yield ""
    if options := list(_options(ctx)):
        yield from options
        yield ""
    for child in _children(ctx):
        yield from _command(child, level=level + 1)


def _paragraph(text: str) -> list[str]:
    if not text.startswith("\b"):
        return textwrap.wrap(" ".join(text.split()), 118, break_on_hyphens=False)
    title, *lines = text.removeprefix("\b").strip("\n").split("\n")
    end = next((place for place, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    block = textwrap.dedent("\n".join(lines[:end]))
    return [f"{title}\n", f"```\n{block}\n```", *(["", *lines[end:]] if lines[end:] else [])]


def _options(ctx: click.Context) -> Iterator[str]:
    for parameter in ctx.command.get_params(ctx):
        shown = parameter.get_help_record(ctx)
        if (
            shown is not None
            and isinstance(parameter, click.Option)
            and not {"--help", "--version"} & {*parameter.opts}
        ):
            yield f"- `{shown[0]}`: {' '.join(shown[1].split())}"


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python tests/commands/test_reference.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE} is written\n")
