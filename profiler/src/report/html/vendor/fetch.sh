#!/bin/sh
# Fetches the libraries of the HTML report from npm, in the versions below, and checks that they are those that are committed.
# Only for those who change a version: the files are in the repository, and building heapbpf takes no network.
#
# Usage: profiler/src/report/html/vendor/fetch.sh
# After a change of a version: `sha256sum uplot/* > SHA256SUMS` in this folder, once the new files have been reviewed.
set -eu

# https://github.com/leeoniya/uPlot, MIT
UPLOT=1.6.32

cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

(cd "$folder" && npm pack --silent "uplot@$UPLOT" && tar -xzf "uplot-$UPLOT.tgz")
mkdir -p uplot
cp "$folder/package/LICENSE" "$folder/package/dist/uPlot.iife.min.js" "$folder/package/dist/uPlot.min.css" uplot/
sha256sum --check SHA256SUMS
