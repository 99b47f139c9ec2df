"""Every error a user can cause. Each message says where, expected, got, what to do."""

from __future__ import annotations


class PrivauditError(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        where: Dotted path of the thing at fault, such as ``Auditor.mean`` or a
            module name inside the user's model.
        expected: What would have been right.
        got: What was found instead.
        hint: What the user can do about it.
    """

    def __init__(self, where: str, *, expected: str, got: str, hint: str) -> None:
        self.where = where
        self.expected = expected
        self.got = got
        self.hint = hint
        super().__init__(f"{where}: expected {expected}, got {got}. {hint}")


class ConfigError(PrivauditError):
    """A setting, a file or an input that cannot be used."""


class NothingToAuditError(ConfigError):
    """No image was left to audit."""


class UnsupportedModelError(PrivauditError):
    """A model, or a part of it, that cannot be audited as it stands."""


class AttackError(PrivauditError):
    """An attack that could not be carried out."""


class ReportError(PrivauditError):
    """A result or report that could not be read or written."""


class MissingDependencyError(PrivauditError):
    """An optional package that is needed for what was asked, and is not installed."""
