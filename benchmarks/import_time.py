"""How long ``import privaudit`` takes, beyond starting Python. Prints JSON.

Run it as ``python benchmarks/import_time.py`` with the package installed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

RUNS = 5


def main() -> None:
    """Compare the import with an empty program."""
    seconds("import privaudit")  # the first run fills the caches
    nothing, whole = seconds("pass"), seconds("import privaudit")
    print(
        json.dumps(
            {
                "runs": RUNS,
                "python_s": round(nothing, 3),
                "python_and_import_s": round(whole, 3),
                "import_s": round(whole - nothing, 3),
            }
        )
    )


def seconds(code: str) -> float:
    """Median wall clock of running ``code`` in a fresh interpreter."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
