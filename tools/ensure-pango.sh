#!/usr/bin/env bash
# Pango draws the PDF report. Nothing else needs it, so its lack is never fatal.
set -eu

here=$(dirname "$0")

if [ "$(uname)" = Darwin ]; then
    for prefix in /opt/homebrew /usr/local; do
        [ -e "$prefix/lib/libpango-1.0.dylib" ] && exit 0
    done
    echo "Pango (for PDF reports; HTML works without): not found. brew install pango" >&2
    exit 0
fi

has() {
    PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q "$1"
}

if has libpango-1.0.so.0 && has libpangoft2-1.0.so.0 && has libharfbuzz-subset.so.0
then
    exit 0
fi
"$here/apt-install.sh" "Pango (for PDF reports; HTML works without)" \
    libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 || true
