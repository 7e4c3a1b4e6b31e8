#!/bin/sh
# Installs what the tests need from npm, in the layout they expect:
#   <dir>/node_modules      node 22 and the TypeScript reference server
#   <dir>/c16, <dir>/c20    the two versions of the official conformance runner
# <dir> is $1, else $MCP_GUARD_NODE_DIR, else .venvs/node in this repository. A part that is there already is kept.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
dir=${1:-${MCP_GUARD_NODE_DIR:-$here/../../.venvs/node}}

# Usage: installed <folder> <name> <version>
installed() {
    grep -qs "\"version\": \"$3\"" "$1/node_modules/$2/package.json"
}

# Usage: npm_install <folder> <name@version>...
npm_install() {
    folder=$1
    shift
    # A package.json of our own keeps npm from walking up to some other project.
    mkdir -p "$folder"
    [ -f "$folder/package.json" ] || printf '{"private": true}\n' >"$folder/package.json"
    (cd "$folder" && npm install --no-save --no-package-lock --no-audit --no-fund --loglevel=error "$@")
}

installed "$dir" node 22.23.3 &&
    installed "$dir" @modelcontextprotocol/server-everything 2026.8.31 &&
    [ -x "$dir/node_modules/node/bin/node" ] ||
    npm_install "$dir" node@22.23.3 @modelcontextprotocol/server-everything@2026.8.31
installed "$dir/c16" @modelcontextprotocol/conformance 0.1.16 ||
    npm_install "$dir/c16" @modelcontextprotocol/conformance@0.1.16
installed "$dir/c20" @modelcontextprotocol/conformance 0.2.0-alpha.12 ||
    npm_install "$dir/c20" @modelcontextprotocol/conformance@0.2.0-alpha.12

"$dir/node_modules/node/bin/node" --version
