"""An HTTP server of the standard library, whose handler calls the function `handle` of a module: plain.py PORT MODULE."""

import importlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANDLE = importlib.import_module(sys.argv[2]).handle


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        text = str(HANDLE(int(self.path.rsplit("/", 1)[1]))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
