"""The one error a user can cause."""


class SelfsameError(Exception):
    """Bad input: one line that names the file or option and says what was expected. The command line exits with 2."""
