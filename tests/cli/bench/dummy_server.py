"""A server for the life cycle tests: `dummy_server.py PORT [MODE]` answers 200 at /health.

Modes: `stubborn` ignores SIGTERM, `loaded` answers 503, `broken` exits at once; `parent` has a child that ignores
SIGTERM and tells its process id at /child.
"""

import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def main(port: int, mode: str) -> None:
    if mode == "broken":
        sys.exit("the model folder is\nhalf empty")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = 0
    if mode == "parent":
        process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        child = process.pid

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if mode == "loaded" else 200)
            self.end_headers()
            self.wfile.write(str(child).encode())

    print("listening", flush=True)
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "good")
