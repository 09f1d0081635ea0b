"""Opens a trace in catapult's viewer, which Debian's golang-1.19-src brings, and prints what its importer understood: warnings,
and per process and dump the allocators' totals and what each stack (names, the outermost first) and type holds.

    memory_infra.py FILE [SCREENSHOT]
"""

import json
import os
import sys

import browser

CATAPULT = "/usr/share/go-1.19/src/cmd/trace/static"

# No server: its parts, which a file may not import, are handed to the page under a name that nobody else has.
ORIGIN = "http://catapult.invalid/"

PAGE = """<!DOCTYPE html><meta charset="utf-8"><script src="webcomponents.min.js"></script>
<link rel="import" href="trace_viewer_full.html"><body>"""

IMPORT = """async text => {
  const model = window.model = new tr.Model();
  const options = new tr.importer.ImportOptions();
  options.showImportWarnings = false;
  await new tr.importer.Import(model, options).importTracesWithProgressDialog([text]);
  const scalars = allocator => Object.fromEntries(
      Object.entries(allocator.numerics).map(([name, scalar]) => [name, scalar.value]));
  const stack = frame => frame ? [...stack(frame.parentFrame), frame.title] : [];
  const entry = ({ leafStackFrame, objectTypeName, size, count }) => ({
    // The importer's last frame stands for what the function holds itself.
    stack: stack(leafStackFrame).slice(0, -1), type: objectTypeName, size, count,
  });
  const dump = one => ({
    time_ms: one.start,
    mappings: one.vmRegions ? { size: one.vmRegions.sizeInBytes, ...one.vmRegions.byteStats } : null,
    allocators: Object.fromEntries((one.memoryAllocatorDumps || []).map(one => [one.fullName, scalars(one)])),
    heaps: Object.fromEntries(
        Object.entries(one.heapDumps || {}).map(([name, heap]) => [name, heap.entries.map(entry)])),
  });
  const warnings = model.importWarnings.map(({ type, message }) => `${type}: ${message}`);
  const processes = Object.values(model.processes).map(process => ({
    pid: Number(process.pid), name: process.name, labels: process.labels, dumps: process.memoryDumps.map(dump),
  }));
  return { warnings, processes, dumps: model.globalMemoryDumps.length, metadata: model.metadata };
}"""

# The last dump, as it is shown when it is chosen on the timeline.
SHOW = """() => {
  const view = document.createElement('tr-ui-a-container-memory-dump-sub-view');
  view.selection = new tr.model.EventSet(model.globalMemoryDumps.slice(-1));
  Polymer.dom(document.body).appendChild(view);
}"""


def answer(route):
    name = route.request.url.removeprefix(ORIGIN)
    if name == "":
        return route.fulfill(body=PAGE, content_type="text/html")
    if name in os.listdir(CATAPULT):
        return route.fulfill(path=os.path.join(CATAPULT, name))
    return route.abort()


def main(path):
    with browser.page(height=1000) as page:
        page.route("**/*", answer)
        page.goto(ORIGIN)
        page.wait_for_function("window.tr && tr.importer && tr.importer.Import && !!window.Polymer")
        with open(path, encoding="utf-8") as trace:
            found = page.evaluate(IMPORT, trace.read())
        page.evaluate(SHOW)
        browser.screenshot(page, os.path.splitext(path)[0] + ".png")
        json.dump({**found, "complaints": page.complaints}, sys.stdout)


main(*sys.argv[1:])
