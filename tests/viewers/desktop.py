"""Opens a file in a desktop program on a screen of its own, goes through its tabs, and closes it.

    desktop.py PROGRAM FILE SCREENSHOT TABS

Prints how many tabs were shown, each as soon as what is on the screen has changed, and how the program ended. Cells and charts are red, green
or between: a program only shows these when it has read the file, and its controls are grey and blue.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib

SECONDS_MAX = 120
# Of red or green from blue.
DISTANCE_MIN = 60
PIXELS_MIN = 16


class Screen:
    """Xvfb, whose picture is a file."""

    def __init__(self, folder):
        self.file = os.path.join(folder, "Xvfb_screen0")
        number, written = os.pipe()
        self.server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(written), "-screen", "0", "1280x1024x24", "-nolisten", "tcp", "-fbdir", folder],
            pass_fds=[written],
            stderr=subprocess.DEVNULL,
        )
        os.close(written)
        with os.fdopen(number) as line:
            self.display = ":" + line.readline().strip()

    def rows(self):
        """Pixels of 4 bytes: blue, green, red, nothing. Lines of the format of xwd."""
        with open(self.file, "rb") as file:
            data = file.read()
        header = struct.unpack(">25I", data[:100])
        width, height, row_bytes = header[4], header[5], header[12]
        start = header[0] + 12 * header[19]
        return [data[start + row * row_bytes :][: 4 * width] for row in range(height)]

    def picture(self):
        return zlib.crc32(b"".join(self.rows()))

    def shows_data(self):
        near = lambda row, at: max(row[at + 1], row[at + 2]) - row[at] >= DISTANCE_MIN
        # Some of the pixels are enough to find an area.
        found = sum(near(row, at) for row in self.rows()[::4] for at in range(0, len(row), 16))
        return found >= PIXELS_MIN

    def save(self, path):
        rows = self.rows()
        lines = b"".join(b"\0" + b"".join(row[i + 2 : i + 3] + row[i + 1 : i + 2] + row[i : i + 1] for i in range(0, len(row), 4)) for row in rows)
        part = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        size = struct.pack(">IIBBBBB", len(rows[0]) // 4, len(rows), 8, 2, 0, 0, 0)
        with open(path, "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", size) + part(b"IDAT", zlib.compress(lines)) + part(b"IEND", b""))


def wait(program, happened):
    """Whether something happens while the program runs."""
    end = time.monotonic() + SECONDS_MAX
    while program.poll() is None and time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.1)
    return False


def main(name, path, screenshot, tabs):
    with tempfile.TemporaryDirectory() as home:
        screen = Screen(home)
        runtime = os.path.join(home, "run")
        os.mkdir(runtime, 0o700)
        surroundings = {**os.environ, "DISPLAY": screen.display, "HOME": home, "XDG_RUNTIME_DIR": runtime, "LC_ALL": "C"}
        surroundings.pop("XAUTHORITY", None)
        use = lambda *words: subprocess.run(["xdotool", *words], env=surroundings, check=True, capture_output=True, text=True).stdout
        try:
            program = subprocess.Popen([name, path], env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            shown = 0
            if wait(program, screen.shows_data):
                shown = 1
                screen.save(screenshot)
                print(f"screenshot: {screenshot}", file=sys.stderr)
                # There is no window manager that would do it.
                window = use("search", "--onlyvisible", "--pid", str(program.pid)).split()[-1]
                use("windowfocus", "--sync", window)
                for _ in range(int(tabs)):
                    before = screen.picture()
                    use("key", "ctrl+Tab")
                    if not wait(program, lambda: screen.picture() != before):
                        break
                    shown += 1
                    screen.save(f"{screenshot.removesuffix('.png')}.{shown}.png")
            if program.poll() is None and shown > 0:
                use("key", "ctrl+q")
            elif program.poll() is None:
                program.kill()
            try:
                output, _ = program.communicate(timeout=SECONDS_MAX)
            except subprocess.TimeoutExpired:
                program.kill()
                output, _ = program.communicate()
            json.dump({"shown": shown, "ended": program.returncode, "output": output}, sys.stdout)
        finally:
            screen.server.terminate()
            screen.server.wait()


main(*sys.argv[1:])
