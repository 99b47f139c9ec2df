"""What several files of tests need: tiny pipelines of diffusers, and no network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.models.pipelines import latent_pipeline, pixel_pipeline


@pytest.fixture(scope="session")
def latent_prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return latent_pipeline(tmp_path_factory.mktemp("priors") / "latents", shift=0.1)


@pytest.fixture(scope="session")
def pixel_prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pixel_pipeline(tmp_path_factory.mktemp("priors") / "pixels")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to connect: none is allowed, and none is expected."""
    calls: list[Any] = []

    def refuse(*args: Any, **_: Any) -> Any:
        calls.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("PRIVAUDIT_DOWNLOAD", raising=False)
    return calls
