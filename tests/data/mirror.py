"""A server on this machine that misbehaves as real ones do."""

import contextlib
import http.server
import threading
import time


class Mirror:
    """Serves a dictionary of files, changed by ``spoil(content)``, and logs the requests.

    ``promise`` is the length that it announces, ``pause`` the seconds between two bytes. With
    ``moved`` it sends to another address first, in an answer without an end.
    """

    def __init__(self, files, spoil=bytes, promise=None, pause=0.0, moved=False):
        self.requests = requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                if moved and not self.path.startswith("/moved/"):
                    self.send_response(302)
                    self.send_header("Location", f"/moved/{name}")
                    self.end_headers()
                    while True:
                        self.wfile.write(bytes(2**16))
                requests.append(name)
                if name not in files:
                    self.send_error(404)
                    return
                content = spoil(files[name])
                self.send_response(200)
                self.send_header("Content-Length", str(promise or len(content)))
                self.end_headers()
                size = 1 if pause else len(content)
                for start in range(0, len(content), size):
                    self.wfile.write(content[start : start + size])
                    time.sleep(pause)

            def handle(self):
                with contextlib.suppress(ConnectionError):  # the other side has had enough
                    super().handle()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/files/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
