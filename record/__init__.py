"""The run record: the files that a run leaves in its folder, and how they are written and read.

    manifest.json         what ran: recipe, arguments, versions, hardware, start, end, exit status
    events.jsonl          one line a stage: model loaded, engines ready, trained, ...
    metrics.jsonl         one line a step
    phases.rank*.jsonl    what each rank was doing, and when
    phases.server.jsonl   when the server was busy, in the server arm
    error.rank*.json      why a rank stopped, where one did
    nodes/*.json          on several nodes: what each one's launcher said last (launch/peers.py)
    checkpoint-*/         transformers' checkpoints; whole.json in one says that it is whole
    attempts/*/           of a resumed run: what its earlier attempts left beside what counts
    lock, stop.json       held by the launcher while the run is going; asks the ranks to end after the step

`launch` makes the folder and has the last word on the exit status, `training` fills it, `analysis` reads it. This folder
is all that they share. It imports the standard library alone.
"""

from record.files import LineFollower, LineWriter, clean, read_json, read_lines, utc_now, write_json, write_lines
from record.run import SCHEMA_VERSION, RunFolder

__all__ = [
    "SCHEMA_VERSION",
    "LineFollower",
    "LineWriter",
    "RunFolder",
    "clean",
    "read_json",
    "read_lines",
    "utc_now",
    "write_json",
    "write_lines",
]
