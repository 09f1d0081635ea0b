"""Opens a file in valgrind's viewer of DHAT profiles, and prints what it shows.

    dhat.py FILE SCREENSHOT
"""

import json
import sys

import browser

VIEWER = "/usr/libexec/valgrind/dh_view.html"


def main(path, picture):
    answer = {}
    with browser.page(1280, 1000) as page:
        page.goto(browser.address(VIEWER))
        page.set_input_files("input[type=file]", path)
        page.wait_for_function("() => /Invocation/.test(document.body.innerText) || /rror/.test(document.body.innerText)")
        answer["text"] = page.evaluate("() => document.body.innerText")
        answer["complaints"] = page.complaints
        answer["owned"] = page.evaluate("() => window.owned ?? null")
        browser.screenshot(page, picture)
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
