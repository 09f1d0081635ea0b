"""Opens a file in speedscope, has it export what it understood, and prints that: names, units, and per profile the
weight of each stack (frames' names, the outermost first) in the file's own order.

    speedscope.py FILE [SCREENSHOT]
"""

import json
import os
import sys

import browser

APP = "node_modules/speedscope/dist/release/index.html"


def stacks(profile, frames):
    """Names of a stack's frames, and its weight: of samples, or of what lies between events."""
    if profile["type"] == "sampled":
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
            yield [frames[index]["name"] for index in sample], weight
        return
    stack, since = [], profile["startValue"]
    for event in profile["events"]:
        if stack and event["at"] > since:
            yield [frames[index]["name"] for index in stack], event["at"] - since
        since = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert not stack


def main(path, picture=None):
    with browser.page() as page:
        page.goto(browser.address(os.path.join(browser.viewers(), APP)))
        page.set_input_files("input[type=file]", path)
        page.get_by_text("Left Heavy").wait_for()
        if picture:
            page.get_by_text("Left Heavy").click()
            page.wait_for_timeout(500)
            browser.screenshot(page, picture)
        with page.expect_download() as download:
            page.get_by_text("Export").click()
        with open(download.value.path(), encoding="utf-8") as exported:
            exported = json.load(exported)
        frames = exported["shared"]["frames"]
        profiles = [
            {"name": profile["name"], "unit": profile["unit"], "stacks": list(stacks(profile, frames))}
            for profile in exported["profiles"]
        ]
        active = exported.get("activeProfileIndex")
        answer = {"title": page.title(), "complaints": page.complaints, "active": active, "frames": frames, "profiles": profiles}
        json.dump(answer, sys.stdout)


main(*sys.argv[1:])
