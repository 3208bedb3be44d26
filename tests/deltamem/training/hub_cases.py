"""A hub of models on this machine, as far as the real client asks it when a folder is uploaded."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Hub:
    """Takes uploads to any repository by whoever has the token "secret"; weights go to its store of large files."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.full = False
        self._large: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = hub._answer(self.path, body, self.headers.get("Authorization"))
                self.send_response(code)
                data = json.dumps(answer).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, body: bytes, authorization: str | None) -> tuple[int, Any]:
        if path.startswith("/large/"):
            self._large[path.removeprefix("/large/")] = body
            return 200, {}
        if authorization != "Bearer secret":
            return 401, {"error": "Invalid credentials"}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.url}/me/memory"}
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            return 200, {"files": [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in names]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            actions = [{**one, "actions": {"upload": {"href": f"{self.url}/large/{one['oid']}"}}} for one in objects]
            return 200, {"transfer": "basic", "objects": actions}
        if "/commit/" in path:
            return self._commit([json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"{path}: not scripted"}

    def _commit(self, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.full:
            return 403, {"error": "storage limit reached"}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self._large[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/me/memory/commit/{'0' * 40}", "commitOid": "0" * 40}
