#!/usr/bin/env bash
# Install Debian packages where we may; otherwise say what to type.
# Usage: apt-install.sh "what for" PACKAGE...      Exit 1: not installed.
set -eu

purpose=$1
shift

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "$purpose: not found. On Debian or Ubuntu: sudo apt install $*" >&2
    exit 1
fi

echo "$purpose: installing $* with apt"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null || true
if ! apt-get install -y -qq --no-install-recommends "$@" >/dev/null; then
    echo "$purpose: apt could not install $*" >&2
    exit 1
fi
