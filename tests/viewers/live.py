"""The live page in Chromium.

    live.py states PAGE FOLDER           a small server makes a live page of a page in a file: what the reader has chosen
                                         stays as documents follow each other; pause, reconnection and end
    live.py follow ADDRESS UPDATES       a page of `heapbpf --serve`: follows it for this many updates
"""

import copy
import json
import os
import sys
import threading
import time

# The standard library's `html`, which its server needs, comes before `html.py`.
sys.path.append(sys.path.pop(0))

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import browser
from report_page import DATA, box, chosen, data_of, text, watch

EVENT_SECONDS = 0.5


class Recording:
    """A recording that grows with every event, as `--serve` would show it."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            whole = file.read()
        self.base = data_of(whole)
        page = DATA.sub(lambda found: found.group(1)[:-1] + " data-live>" + found.group(3), whole)
        self.page = page.replace("; base-uri", "; connect-src 'self'; base-uri").encode()
        self.sequence = 1
        self.documents = 0
        self.has_newcomer = False
        self.refuses = False
        self.ended = False
        self.changed = threading.Condition()

    def document(self):
        """Every amount grows with the sequence number. A process that is first in the list renumbers all others'."""
        data = copy.deepcopy(self.base)
        data["header"]["span"] += 1000 * self.sequence
        for target in data["targets"]:
            columns = target["callsites"]
            for name in ("live_bytes", "alloc_bytes"):
                columns[name] = [number * (1 + self.sequence / 100) for number in columns[name]]
            instants = target["history"]["instants"]
            instants["time"] = instants["time"] + [self.base["header"]["span"]]
            instants["occasion"] = (instants["occasion"] or [0] * (len(instants["time"]) - 1)) + [0]
        if self.has_newcomer:
            data["targets"].insert(0, {**copy.deepcopy(data["targets"][0]), "name": "newcomer (pid 1)", "pid": 1})
        self.documents += 1
        return data

    def set(self, **values):
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()


def handler(recording):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, kind, body, **headers):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            path = self.path.split("?")[0]
            if path == "/":
                self.answer(200, "text/html", recording.page)
            elif recording.refuses:
                self.answer(503, "text/plain", b"", Retry_After="1")
            elif path == "/api/document":
                body = json.dumps(recording.document()).encode()
                self.answer(200, "application/json", body, Heapbpf_Sequence=str(recording.sequence))
            elif path == "/api/events":
                self.events()
            else:
                self.answer(404, "text/plain", b"")

        def events(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            while not recording.refuses:
                name = "end" if recording.ended else "update"
                data = json.dumps({"sequence": recording.sequence, "time": 0, "recording": True})
                try:
                    self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
                except OSError:
                    return
                if recording.ended:
                    return
                with recording.changed:
                    recording.changed.wait(EVENT_SECONDS)
                    recording.sequence += 1
            self.close_connection = True

    return Handler


def serve(recording):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(recording))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}/"


def updates(page):
    return int(page.evaluate("() => document.documentElement.dataset.updates ?? 0"))


def wait_updates(page, more):
    """Waits for further documents."""
    wanted = updates(page) + more
    timeout = 60_000 + 10_000 * more
    page.wait_for_function("(wanted) => Number(document.documentElement.dataset.updates ?? 0) >= wanted", arg=wanted, timeout=timeout)
    return wanted


def wait_state(page, state):
    page.wait_for_function("(state) => document.querySelector('#live')?.dataset.state === state", arg=state)


SHIFTS = """() => {
    window.shifts = [];
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) {
            if (!entry.hadRecentInput) {
                window.shifts.push([entry.value, ...entry.sources.map((source) => source.node?.id || source.node?.parentElement?.id || source.node?.nodeName)]);
            }
        }
    }).observe({ type: "layout-shift" });
}"""


def kept(page):
    """What must not change from one document to the next."""
    return page.evaluate(
        """() => ({
            zoomed: document.querySelector("#flame-detail .whole-name")?.textContent ?? null,
            search: document.querySelector("#search").value,
            focus: document.querySelector("#filter-focus")?.value ?? null,
            view: document.querySelector("#views [aria-checked=true]").id,
            target: document.querySelector("#target")?.selectedOptions[0]?.textContent ?? null,
            tab: document.querySelector("[role=tab][aria-selected=true]").id,
            open: [...document.querySelectorAll("#table-body .where[aria-expanded=true] .chain:first-child")].map((one) => one.textContent),
            stack: [...document.querySelectorAll(".callsite li code:first-child")].map((one) => one.textContent),
            sorted: document.querySelector("#table-head th[aria-sort=ascending]")?.textContent ?? null,
            from: [document.querySelector("#period-from").selectedIndex, document.querySelector("#period-from").value],
            to: document.querySelector("#period-to").selectedIndex === document.querySelector("#period-to").options.length - 1,
            editor: document.querySelector("#editor-menu").open,
            focused: document.activeElement.id || document.activeElement.className,
            scroll: Math.round(document.querySelector("#tables").getBoundingClientRect().top),
        })"""
    )


def choose(page):
    """Chooses something of every kind."""
    page.click("#view-alloc-bytes")
    page.locator("#flame-scroller").click(position=box(page, 2, 0.1))
    page.click("#filters-toggle")
    page.fill("#filter-focus", ".")
    page.fill("#search", "a")
    page.select_option("#target", index=1)
    page.click("#table-head button[data-column=live_bytes]")
    page.click("#table-head button[data-column=live_bytes]")
    page.select_option("#period-from", index=1)
    page.locator("#table-body .where").first.click()
    page.click("#editor-menu summary")
    page.locator("#tables").scroll_into_view_if_needed()
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(300)


def states(path, folder):
    recording = Recording(path)
    server, address = serve(recording)
    answer = {}
    with browser.page(1280, 900, offline=False) as page:
        watch(page)
        page.goto(address)
        wait_updates(page, 1)
        wait_state(page, "live")
        first = text(page, "#view-alloc-bytes strong")
        choose(page)
        answer["before"] = kept(page)
        page.evaluate(SHIFTS)
        wait_updates(page, 1)
        recording.set(has_newcomer=True)
        wait_updates(page, 2)
        answer["after"] = kept(page)
        answer["shifts"] = page.evaluate("() => window.shifts")
        answer["grew"] = first != text(page, "#view-alloc-bytes strong")
        answer["targets"] = page.locator("#target option").all_inner_texts()

        page.click("#live-pause")
        wait_state(page, "paused")
        page.evaluate("() => scrollTo(0, 0)")
        browser.screenshot(page, os.path.join(folder, "live.png"))
        page.wait_for_timeout(200)
        known, sequence = updates(page), recording.sequence
        while recording.sequence < sequence + 8:
            time.sleep(EVENT_SECONDS)
        answer["while_paused"] = updates(page) - known
        page.click("#live-pause")
        wait_state(page, "live")
        wait_updates(page, 1)

        recording.set(refuses=True)
        wait_state(page, "reconnecting")
        recording.set(refuses=False)
        wait_state(page, "live")
        wait_updates(page, 1)
        recording.set(ended=True)
        wait_state(page, "ended")
        answer["end"] = [text(page, "#live-state"), page.locator("#live-pause").count()]
        answer["updates"], answer["documents"] = updates(page), recording.documents
        # The browser reports refused connections to the console itself.
        answer["complaints"] = [one for one in page.complaints if "503" not in one and "ERR_INCOMPLETE_CHUNKED" not in one]
        answer["requests"] = [url for url in page.requests if not url.startswith(address)]
        answer["owned"] = None
    server.shutdown()
    return answer


def follow(address, count):
    """Follows a page for this many updates, with a selection."""
    answer = {}
    with browser.page(1280, 900, offline=False) as page:
        watch(page)
        page.goto(address)
        wait_updates(page, 1)
        page.locator("#flame-scroller").click(position=box(page, 2, 0.1))
        page.locator("#table-body .where").first.click()
        answer["zoomed"] = [chosen(page)]
        wait_updates(page, int(count))
        answer["zoomed"].append(chosen(page))
        answer["updates"] = updates(page)
        answer["state"] = text(page, "#live-state")
        answer["complaints"] = page.complaints
        answer["requests"] = sorted({url.split("?")[0][len(address) :] for url in page.requests})
    return answer


def main(what, *arguments):
    scenes = {scene.__name__: scene for scene in (states, follow)}
    json.dump(scenes[what](*arguments), sys.stdout)


main(*sys.argv[1:])
