"""privaudit: does your PyTorch model give its training images away?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from privaudit.auditor import Auditor as Auditor
    from privaudit.config import AuditConfig as AuditConfig
    from privaudit.config import Budget as Budget
    from privaudit.config import Client as Client
    from privaudit.config import Knowledge as Knowledge
    from privaudit.config import Split as Split
    from privaudit.recording import record_step as record_step
    from privaudit.result import AuditResult as AuditResult
    from privaudit.verdict import Policy as Policy

_PUBLIC = {
    "Auditor": "privaudit.auditor",
    "AuditConfig": "privaudit.config",
    "AuditResult": "privaudit.result",
    "Budget": "privaudit.config",
    "Client": "privaudit.config",
    "Knowledge": "privaudit.config",
    "Policy": "privaudit.verdict",
    "Split": "privaudit.config",
    "record_step": "privaudit.recording",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    """Import public names on first use, so that importing the package stays quick."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
