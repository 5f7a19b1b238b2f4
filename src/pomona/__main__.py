"""The command `pomona`, also `python -m pomona`: whatever goes wrong is one line on stderr and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from pomona.cli.app import app
from pomona.refusal import Refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 2 where the command line or the configuration is at fault, 130 after Ctrl-C, 1 for all else.

    POMONA_LOG=debug adds the traceback.
    """
    try:
        status = app(args=arguments, prog_name="pomona", standalone_mode=False)
    except Refusal as refusal:
        return _say(str(refusal), refusal.exit_code)
    except typer.TyperException as usage:
        text = usage.format_message()
        if text.startswith("Usage:"):  # The help of a group that was called without a command.
            print(text, file=sys.stderr)
            return 2
        return _say(f"{text} (pomona --help lists what there is)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        return _say(f"unexpected {type(error).__name__}: {error} (POMONA_LOG=debug shows where)", 1)
    return status if isinstance(status, int) else 0


def _say(text: str, status: int) -> int:
    if os.environ.get("POMONA_LOG", "").strip().lower() == "debug":
        traceback.print_exc()
    print("pomona:", " ".join(text.split()), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
