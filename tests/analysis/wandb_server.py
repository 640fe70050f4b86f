"""A server that answers wandb's client as wandb's own does, as far as reading runs goes.

The client is the real one (wandb.Api, and the wandb-core process that it starts), pointed here. The answers are made by us, in
the shape that the client's own GraphQL queries ask for (wandb 0.31: Runs, RunHistoryKeys, RunParquetHistory, HistoryPage):
nobody's project was recorded. A query of the client's that has no answer here fails the test.
"""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def node(name: str, state: str, config: dict, history: list[dict]) -> dict:
    """A run as the query Runs gives it; `history` is kept beside it for the other queries."""
    return {
        "id": name, "name": name, "displayName": f"shown-{name}", "state": state, "group": None, "jobType": None,
        "config": json.dumps({key: {"value": value} for key, value in config.items()}), "commit": None, "readOnly": False,
        "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T01:30:00", "description": "", "notes": "",
        "systemMetrics": "{}", "summaryMetrics": "{}", "historyLineCount": len(history), "tags": [], "projectId": "1",
        "user": {"name": "me", "username": "me"}, "sweepName": None, "internalId": "1",
        "historyKeys": {"lastStep": len(history) - 1, "keys": {}, "sets": []},
        "history": [row | {"_step": step} for step, row in enumerate(history)],
    }  # fmt: skip


@contextmanager
def wandb_server(nodes: list[dict]):
    """Serves the project me/project with these runs; yields its address."""
    by_name = {item["name"]: item for item in nodes}

    def answer(operation: str, variables: dict) -> dict:
        if operation in ("Viewer", "GetDefaultEntity"):
            return {
                "viewer": {
                    "id": "1",
                    "entity": "me",
                    "username": "me",
                    "email": "",
                    "flags": "{}",
                    "teams": {"edges": []},
                }
            }
        if variables.get("project") != "project":
            return {"project": None}
        if operation == "Runs":
            edges = [
                {"node": {key: value for key, value in item.items() if key != "history"}, "cursor": "end"}
                for item in nodes
            ]
            page = {"endCursor": "end", "hasNextPage": False}
            return {"project": {"internalId": "1", "runCount": len(nodes), "readOnly": False,
                                "runs": {"edges": edges, "pageInfo": page}}}  # fmt: skip
        if operation == "RunHistoryKeys":
            return {"project": {"run": {"historyKeys": by_name[variables["name"]]["historyKeys"]}}}
        if operation == "RunParquetHistory":
            return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": []}}}}
        if operation == "HistoryPage":
            rows = by_name[variables["run"]]["history"][variables["minStep"] : variables["maxStep"]]
            return {"project": {"run": {"history": [json.dumps(row) for row in rows]}}}
        raise AssertionError(f"no answer to {operation} was written")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            operation = re.search(r"query\s+(\w+)", asked["query"])[1]
            try:
                reply = {"data": answer(operation, asked.get("variables") or {})}
            except (AssertionError, KeyError) as error:
                reply = {"data": None, "errors": [{"message": repr(error)}]}
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args):
            """A client that has left is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
