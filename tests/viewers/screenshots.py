"""Takes the pictures of docs/: `cargo xtask screenshots`.

    screenshots.py PAGE PICTURE      the HTML report as it opens, 1280 by 800 pixels, light
"""

import json
import sys

import browser


def main(path, picture):
    with browser.page(1280, 800, color_scheme="light", reduced_motion="reduce") as page:
        page.goto(browser.address(path))
        page.wait_for_function("() => document.documentElement.dataset.drawnMillis !== undefined")
        page.mouse.move(0, 0)
        browser.screenshot(page, picture)
        json.dump({"complaints": page.complaints}, sys.stdout)


main(*sys.argv[1:])
