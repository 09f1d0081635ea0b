"""Opens a flame graph of inferno's in Chromium: looks at its frames and hovers; searches and zooms on request.

    flamegraph.py FILE SCREENSHOT [SEARCHED [ZOOMED]]

`SEARCHED` is a regular expression, `ZOOMED` the beginning of a frame's title.
"""

import json
import sys

import browser

FRAMES = """() => [...document.querySelectorAll('#frames > g, #frames > a > g')].map(g => ({
    title: g.querySelector('title').textContent,
    x: +g.querySelector('rect').getBoundingClientRect().x,
    y: +g.querySelector('rect').getBoundingClientRect().y,
    width: +g.querySelector('rect').getBoundingClientRect().width,
    fill: g.querySelector('rect').getAttribute('fill'),
    shown: getComputedStyle(g).display !== 'none',
}))"""

LEGEND = "() => [...document.querySelectorAll('svg:not(#frames) > g > text')].map(text => text.textContent)"

DARK = """() => ({
    ground: getComputedStyle(document.querySelector('.ground')).fill,
    frames: [...new Set([...document.querySelectorAll('#frames rect:not(.hatching)')].map(rect => getComputedStyle(rect).fill))],
})"""

TEXTS = "() => [...document.querySelectorAll('svg > text, svg > svg > text')].map(text => text.textContent)"


def main(path, picture, searched="", zoomed=""):
    answer = {}
    with browser.page(1280, 1000) as page:
        page.goto(browser.address(path))
        page.wait_for_function("() => document.querySelector('#frames rect') !== null")
        page.wait_for_timeout(300)
        answer["frames"] = page.evaluate(FRAMES)
        answer["texts"] = page.evaluate(TEXTS)
        answer["legend"] = page.evaluate(LEGEND)
        browser.screenshot(page, picture)

        first = page.locator("#frames g", has_text=zoomed).first
        first.locator("rect").hover(force=True)
        answer["details"] = page.locator("#details").text_content()

        if searched:
            page.emulate_media(color_scheme="dark")
            answer["dark"] = page.evaluate(DARK)
            page.emulate_media(color_scheme="light")
            page.evaluate("term => search(term)", searched)
            answer["matched"] = page.locator("#matched").text_content()
            answer["found"] = [frame["title"] for frame in page.evaluate(FRAMES) if frame["fill"] == "rgb(243,154,214)"]
            page.evaluate("() => reset_search()")

        if zoomed:
            first.locator("rect").click(force=True)
            page.wait_for_timeout(300)
            answer["zoomed"] = [frame for frame in page.evaluate(FRAMES) if frame["shown"]]
            page.locator("#unzoom").click()
            page.wait_for_timeout(300)
            answer["unzoomed"] = page.evaluate(FRAMES)
        answer["complaints"] = page.complaints
        # What a hostile name would have set, could it run.
        answer["owned"] = page.evaluate("() => window.owned ?? null")
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
