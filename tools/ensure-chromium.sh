#!/usr/bin/env bash
# A headless browser for the tests marked "browser". They are skipped without one.
set -eu

here=$(dirname "$0")

for browser in chromium chromium-browser google-chrome; do
    if command -v "$browser" >/dev/null; then
        exit 0
    fi
done
"$here/apt-install.sh" "Chromium (for browser tests; skipped without)" chromium || true
