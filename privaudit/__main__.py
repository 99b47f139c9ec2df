"""``python -m privaudit``."""

from privaudit.cli import main

main()
