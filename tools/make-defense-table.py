"""Write the tables of docs/reference/defenses.md from the registries.

python tools/make-defense-table.py            # writes the file
python tools/make-defense-table.py --check    # exit 1 where it is not up to date
"""

import argparse
import sys
from pathlib import Path

from privaudit.countermeasures import COUNTERMEASURES
from privaudit.defenses import DEFENSES

FILE = Path(__file__).parents[1] / "docs" / "reference" / "defenses.md"
HEAD = """# Defenses and countermeasures

Made by `tools/make-defense-table.py` from the registries. How they are compared:
[Compare defenses](../how-to/compare-defenses.md).

## Defenses

"Acts on": what leaves the device or the client. Settings are those of
`privaudit.defenses`, with their defaults.

| name | paper | acts on | settings | does not protect |
| --- | --- | --- | --- | --- |
"""
MIDDLE = """
## Countermeasures

What the attacker does about a defense. "By default": chosen where the defense is stated
or found (`countermeasures="auto"`); the others only by name.

| name | paper | answers | acts on | by default | settings |
| --- | --- | --- | --- | --- | --- |
"""


def settings(cls: type) -> str:
    """Names with their defaults, as a user writes them."""
    fields = cls.model_fields.items()
    return ", ".join(f"`{n}={f.default!r}`" for n, f in fields) or "none"


def table() -> str:
    """The whole page."""
    lines = [HEAD.rstrip("\n")]
    for name, cls in sorted(DEFENSES.items()):
        places = " and ".join(sorted(cls.exposures))
        lines.append(
            f"| `{name}` | {cls.source or '–'} | {places} | {settings(cls)} | "
            f"{cls.does_not_protect} |"
        )
    lines.append(MIDDLE.rstrip("\n"))
    for name, cls in sorted(COUNTERMEASURES.items()):
        places = " and ".join(sorted(cls.exposures))
        against = ", ".join(f"`{a}`" for a in sorted(cls.against))
        lines.append(
            f"| `{name}` | {cls.source or '–'} | {against} | {places} | "
            f"{'yes' if cls.by_default else 'no'} | {settings(cls)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        FILE.write_text(table())
        return 0
    return int(FILE.read_text() != table())


if __name__ == "__main__":
    sys.exit(main())
