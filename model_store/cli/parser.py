"""The parser of all command lines: `--version`, defaults in the help, and errors that suggest the probable name.

An error is one line on standard error, and the exit code is 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from model_store.cli.terminal import print_output
from model_store.suggestions import did_you_mean


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Adds the default to the help of every option that has a default and whose help does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_default = not any(action.default is nothing for nothing in (None, True, False, argparse.SUPPRESS))
        return f"{text} (default: %(default)s)" if has_default and action.default != [] and "default" not in text else text


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print_output(f"{parser.prog.split()[0]} {installed_version()}")
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """The parser of a command and of its subcommands.

    Args:
        words: further names to suggest for a mistyped argument, such as commands that this parser does not parse.
    """

    def __init__(self, prog: str, *, words: Iterable[str] = (), **options: Any) -> None:
        super().__init__(prog, **({"formatter_class": _HelpFormatter} | options))
        self._words = tuple(words)
        self.add_argument(
            "--version", action=_VersionAction, nargs=0, default=argparse.SUPPRESS, help="print the version and exit"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses unknown arguments here and not in the parent parser, so that a subcommand suggests its own flags."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            self.error(f"there is no argument {word}{did_you_mean(word, (*self._option_string_actions, *self._words))}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            expected = f"expected one of {', '.join(names)}"
            raise argparse.ArgumentError(action, f"got {value!r}, {expected}{did_you_mean(str(value), names)}")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            print_output(message.rstrip("\n"))
        elif message:
            super()._print_message(message, file)


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # here: it takes 20 ms

    try:
        return version("sgformer-serving")
    except PackageNotFoundError:
        return "(version unknown: the package is not installed)"
