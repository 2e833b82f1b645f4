# SPDX-License-Identifier: Apache-2.0
"""``python -m libtorch_neuronx_lite.worker replay|extract FILE``: run a repro file again, or take its blobs out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from libtorch_neuronx_lite.worker import JobError, WorkerError, run
from libtorch_neuronx_lite.worker.protocol import ProtocolError, read_frame


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when the job succeeds, 1 when it fails as it did before, 2 when the file is not a repro file."""
    parser = argparse.ArgumentParser(prog="python -m libtorch_neuronx_lite.worker", description=__doc__)
    parser.add_argument("action", choices=["replay", "extract"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for replay")
    parser.add_argument("--output", type=Path, default=None, help="folder for extract (default: beside the file)")
    options = parser.parse_args(arguments)
    try:
        with options.file.open("rb") as stream:
            header, blobs = read_frame(stream)
        job, name, params = header["job"], header["name"], header["params"]
    except (OSError, EOFError, ProtocolError, KeyError) as error:
        print(f"{options.file}: not a repro file: {error}", file=sys.stderr)
        return 2
    if options.action == "extract":
        folder = options.output or options.file.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for blob, data in blobs.items():
            (folder / Path(blob).name).write_bytes(data)
        (folder / "request.json").write_text(json.dumps({"job": job, "name": name, "params": params}, indent=2))
        print(folder)
        return 0
    try:
        result = run(job, blobs, params, timeout=options.timeout, name=name)
    except (JobError, WorkerError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"blobs": {blob: len(data) for blob, data in result.blobs.items()}, "info": result.info}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
