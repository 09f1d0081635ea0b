"""Opens a page in Chromium and tells what it complained about, and whether a name in it got to run.

    page.py FILE
"""

import json
import sys

import browser


def main(path):
    with browser.page() as page:
        page.goto(browser.address(path))
        page.wait_for_load_state("load")
        page.wait_for_timeout(1000)
        answer = {"complaints": page.complaints, "owned": page.evaluate("() => window.owned ?? null")}
        answer["text"] = page.evaluate("() => document.documentElement.textContent.length")
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
