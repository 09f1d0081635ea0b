"""What the scenes of `html.py` and `html_panels.py` share: opens, changes and reads pages of `report/html`."""

import base64
import gzip
import json
import os
import re

import browser

DATA = re.compile(r'(id="profile">)([^<]*)(<)')


def data_of(page):
    """The data of a page's text."""
    return json.loads(gzip.decompress(base64.b64decode(DATA.search(page).group(2))))


def rewritten(path, folder, name, change):
    """A copy of a page with other data."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    packed = base64.b64encode(gzip.compress(json.dumps(change(data_of(text))).encode(), mtime=0)).decode()
    copy = os.path.join(folder, name)
    with open(copy, "w", encoding="utf-8") as file:
        file.write(DATA.sub(lambda found: found.group(1) + packed + found.group(3), text))
    return copy


def watch(page):
    """Has `page.requests` hold what was asked for besides the page itself."""
    page.requests = []
    page.on("request", lambda request: page.requests.append(request.url))


def opened(page, path, fragment=""):
    page.goto(browser.address(path) + fragment)
    page.wait_for_function("() => document.documentElement.dataset.drawnMillis !== undefined")
    return int(page.evaluate("() => document.documentElement.dataset.drawnMillis"))


def ended(page, answer):
    answer["complaints"] = page.complaints
    answer["requests"] = page.requests[1:]
    answer["owned"] = page.evaluate("() => window.owned ?? null")
    return answer


def text(page, selector):
    return page.locator(selector).first.inner_text()


def whole(page):
    """The whole number of the chosen box, or of all."""
    chosen = page.locator("#flame-detail .amounts")
    line = chosen.inner_text() if chosen.count() > 0 else text(page, "#flame-total")
    return int(re.search(r"([\d,−]+) (bytes|blocks?)$", line).group(1).replace(",", "").replace("−", "-"))


def chosen(page):
    """The name of the chosen box: without one, there is no detail."""
    name = page.locator("#flame-detail .whole-name")
    return name.inner_text() if name.count() > 0 else "all"


def tab(page, name):
    page.click(f"#tab-{name}")


def fragment(page):
    """The state in the address, which follows changes after a short time."""
    page.wait_for_timeout(300)
    return page.evaluate("() => location.hash")


def box(page, row, share=0.5):
    """Where a box of the flame graph is: its row from the top, and a share of the width."""
    bounds = page.locator("#flame-scroller").bounding_box()
    return {"x": bounds["width"] * share, "y": row * 19 + 9}
