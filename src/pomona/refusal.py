"""Errors that people see as one line on stderr; the text names the thing and the mend."""


class Refusal(Exception):
    """Ends the command; `exit_code` is 1, or 2 where the command line or the configuration is at fault."""

    exit_code = 1


class SettingsError(Refusal):
    """The configuration cannot be used."""

    exit_code = 2
