"""The real command in a process of its own, without importing torch every time.

A server process imports everything once and forks for each command; the child runs
``privaudit.cli.main`` on real arguments, or a script, and ends with a real exit code.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FINAL_LINE = re.compile(
    r"privaudit: (leaks|no leak found|inconclusive|not run|error) \| .*exit (\d)"
)

_SERVER = """
import importlib, json, os, runpy, sys, traceback
import torch, torchmetrics, jinja2, PIL.Image, rich.table
torch.set_num_threads(1)
for name in ("auditor", "_loading", "report", "metrics", "_samples", "cli"):
    importlib.import_module(f"privaudit.{name}")

def child(job):
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    for number, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags, 0o600), number)
    sys.argv = [job["script"] or "privaudit", *job["arguments"]]
    code = 1
    try:
        if job["script"]:
            runpy.run_path(job["script"], run_name="__main__")
            code = 0
        else:
            privaudit.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

import privaudit.cli
for line in sys.stdin:
    job = json.loads(line)
    number = os.fork()
    if number == 0:
        child(job)
    _, status = os.waitpid(number, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def line(self) -> str:
        """The last line of standard output."""
        return self.stdout.rstrip("\n").rpartition("\n")[2]

    @property
    def verdict(self) -> tuple[str, int]:
        """Word and code that the last line states."""
        found = FINAL_LINE.fullmatch(self.line)
        assert found, (self.stdout, self.stderr)
        return found[1], int(found[2])


@dataclass(frozen=True)
class Command:
    """Runs ``privaudit``, or a script, in a folder."""

    folder: Path

    def __call__(self, *arguments: str | Path, **environment: str) -> Done:
        return self._done("", arguments, environment)

    def script(self, file: Path, *arguments: str | Path) -> Done:
        """Run a Python file as the main program."""
        return self._done(str(file), arguments, {})

    def _done(
        self, script: str, arguments: tuple[str | Path, ...], extra: dict[str, str]
    ) -> Done:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.TemporaryDirectory() as streams:
            job: dict[str, Any] = {
                "script": script,
                "arguments": [str(a) for a in arguments],
                "cwd": str(self.folder),
                "stdout": f"{streams}/1",
                "stderr": f"{streams}/2",
                "env": extra,
            }
            server.stdin.write(json.dumps(job) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            texts = [Path(streams, n).read_text(encoding="utf-8") for n in "12"]
        return Done(code, *texts)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for the whole test run."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    atexit.register(server.communicate)
    return server


def environment(**extra: str) -> dict[str, str]:
    """One thread, UTF-8, wide enough for tables, and this checkout first."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "100"}
    return {**os.environ, **fixed, "PYTHONPATH": path, **extra}


def privaudit(*arguments: str | Path, cwd: Path, **extra: str) -> Done:
    """``python -m privaudit``, started from nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "privaudit", *map(str, arguments)],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr)
