"""Receives what `heapbpf --push` sends, as a server of Pyroscope, Parca or OpenTelemetry, and decodes it with their
published schemas. gRPC is Google's implementation, HTTP is Python's.

    receiver.py pyroscope|otlp-http|otlp-grpc|parca PORT [CERTIFICATE KEY]

Prints one JSON value per line: first the port, then each request with its contents. Lines on standard input set the
answer to later requests:

    ok                  accept them
    status CODE TEXT    HTTP status or number of a status of gRPC
    later SECONDS       HTTP status 429 with `Retry-After`
    reject NUMBER       OTLP: accept them, but not so many of their profiles
    hang                never answer
    flood               answer 400 with a body of 1 GB
"""

import gzip
import http.server
import json
import pathlib
import ssl
import sys
import tempfile
import threading
import time
from concurrent import futures

import grpc
from grpc_tools import protoc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

PROTOS = pathlib.Path(__file__).parent / "protos"
PATHS = {
    "pyroscope": "/push.v1.PusherService/Push",
    "otlp-http": "/v1development/profiles",
    "otlp-grpc": "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
    "parca": "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
}


def compile_protos():
    folder = tempfile.mkdtemp()
    names = [str(path) for path in PROTOS.glob("*.proto")]
    assert protoc.main(["protoc", f"-I{PROTOS}", f"--python_out={folder}", *names]) == 0
    sys.path.insert(0, folder)


compile_protos()
import parca_pb2  # noqa: E402
import pprof_pb2  # noqa: E402
import pyroscope_pb2  # noqa: E402


class State:
    answer = ["ok"]
    lock = threading.Lock()


def say(value):
    with State.lock:
        print(json.dumps(value), flush=True)


def listen():
    for line in sys.stdin:
        State.answer = line.split() or ["ok"]


def of_pprof(compressed):
    """A profile, and what Parca's validation would refuse."""
    profile = pprof_pb2.Profile()
    profile.ParseFromString(gzip.decompress(compressed))
    strings = profile.string_table
    problems = []
    if not strings or strings[0]:
        problems.append("the first string is not empty")
    for table in ["mapping", "location", "function"]:
        ids = [entry.id for entry in getattr(profile, table)]
        if ids != list(range(1, len(ids) + 1)):
            problems.append(f"ids of the {table}s are not sequential")
    sums, stacks, labels = [0] * len(profile.sample_type), {}, set()
    for sample in profile.sample:
        if len(sample.value) != len(profile.sample_type):
            problems.append("a sample has another number of values")
        names = []
        for location_id in sample.location_id:
            location = profile.location[location_id - 1]
            names += [strings[profile.function[line.function_id - 1].name] for line in location.line]
        values = stacks.setdefault(";".join(names), [0] * len(sums))
        for index, value in enumerate(sample.value):
            sums[index] += value
            values[index] += value
        labels.update(f"{strings[label.key]}={strings[label.str]}" for label in sample.label)
    return {
        "time": profile.time_nanos,
        "duration": profile.duration_nanos,
        "period": profile.period,
        "types": [f"{strings[kind.type]}/{strings[kind.unit]}" for kind in profile.sample_type],
        "sums": sums,
        "stacks": stacks,
        "sample_labels": sorted(labels),
        "build_ids": sorted({strings[mapping.build_id] for mapping in profile.mapping} - {""}),
        "problems": problems,
    }


def of_series(message, labels):
    return [
        {
            "labels": {label.name: label.value for label in labels(series)},
            "duplicates": len(labels(series)) - len({label.name for label in labels(series)}),
            "profiles": [of_pprof(sample.raw_profile) for sample in series.samples],
        }
        for series in message.series
    ]


def of_otlp(body):
    request = ExportProfilesServiceRequest()
    request.ParseFromString(body)
    tables = request.dictionary
    strings = tables.string_table

    def value(any_value):
        return getattr(any_value, any_value.WhichOneof("value"))

    def names(stack_index):
        for location_index in tables.stack_table[stack_index].location_indices:
            for line in tables.location_table[location_index].lines:
                yield strings[tables.function_table[line.function_index].name_strindex]

    def attributes(indices):
        pairs = [tables.attribute_table[index] for index in indices]
        return {strings[pair.key_strindex]: value(pair.value) for pair in pairs}

    def of_profile(profile):
        stacks = {}
        for sample in profile.samples:
            stack = ";".join(names(sample.stack_index))
            stacks[stack] = [stacks.get(stack, [0])[0] + sum(sample.values)]
        kind = profile.sample_type
        return {
            "time": profile.time_unix_nano,
            "duration": profile.duration_nano,
            "period": profile.period,
            "types": [f"{strings[kind.type_strindex]}/{strings[kind.unit_strindex]}"],
            "sums": [sum(sum(sample.values) for sample in profile.samples)],
            "stacks": stacks,
            "sample_labels": [],
            "build_ids": sorted(
                {
                    build_id
                    for mapping in tables.mapping_table
                    for key, build_id in attributes(mapping.attribute_indices).items()
                    if key == "process.executable.build_id.gnu"
                }
            ),
            "problems": [],
        }

    return [
        {
            "labels": {pair.key: str(value(pair.value)) for pair in resource.resource.attributes},
            "duplicates": 0,
            "profiles": [of_profile(profile) for scope in resource.scope_profiles for profile in scope.profiles],
        }
        for resource in request.resource_profiles
    ]


def decode(kind, body):
    if kind == "pyroscope":
        return of_series(pyroscope_pb2.PushRequest.FromString(body), lambda series: series.labels)
    if kind == "parca":
        return of_series(parca_pb2.WriteRawRequest.FromString(body), lambda series: series.labels.labels)
    return of_otlp(body)


def record(kind, path, headers, body, answer):
    headers = {name.lower(): value for name, value in headers if isinstance(value, str)}
    say({"path": path, "headers": headers, "answer": answer, "bytes": len(body), "series": decode(kind, body)})


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kind = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = State.answer
        record(self.kind, self.path, self.headers.items(), body, answer[0])
        if self.path != PATHS[self.kind]:
            return self.reply(404, b"no such path")
        if answer[0] == "ok":
            return self.reply(200, b"{}" if self.kind == "pyroscope" else b"")
        if answer[0] == "status":
            return self.reply(int(answer[1]), " ".join(answer[2:]).encode())
        if answer[0] == "later":
            return self.reply(429, b"later", [("Retry-After", answer[1])])
        if answer[0] == "reject":
            response = ExportProfilesServiceResponse()
            response.partial_success.rejected_profiles = int(answer[1])
            response.partial_success.error_message = "not these"
            return self.reply(200, response.SerializeToString())
        if answer[0] == "hang":
            return time.sleep(3600)
        self.send_response(400)
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        block = b"x" * (1 << 20)
        for _ in range(1 << 10):
            self.wfile.write(block)

    def reply(self, status, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def serve_http(kind, port, files):
    Http.kind = kind
    server = Server(("127.0.0.1", port), Http)
    if files:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class Grpc(grpc.GenericRpcHandler):
    def __init__(self, kind):
        self.kind = kind

    def service(self, details):
        if details.method != PATHS[self.kind]:
            return None
        headers = [(pair.key, pair.value) for pair in details.invocation_metadata]
        return grpc.unary_unary_rpc_method_handler(lambda body, context: self.receive(headers, body, context))

    def receive(self, headers, body, context):
        answer = State.answer
        record(self.kind, PATHS[self.kind], headers, body, answer[0])
        if answer[0] == "status":
            code = next(code for code in grpc.StatusCode if code.value[0] == int(answer[1]))
            context.abort(code, " ".join(answer[2:]))
        if answer[0] == "hang":
            time.sleep(3600)
        if answer[0] == "reject":
            response = ExportProfilesServiceResponse()
            response.partial_success.rejected_profiles = int(answer[1])
            return response.SerializeToString()
        return b""


def serve_grpc(kind, port, files):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Grpc(kind),))
    address = f"127.0.0.1:{port}"
    if files:
        certificate, key = (pathlib.Path(file).read_bytes() for file in files)
        port = server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port(address)
    server.start()
    serve_grpc.server = server
    return port


def main(kind, port, *files):
    serve = serve_grpc if kind in ("parca", "otlp-grpc") else serve_http
    say({"port": serve(kind, int(port), files)})
    listen()


main(*sys.argv[1:])
