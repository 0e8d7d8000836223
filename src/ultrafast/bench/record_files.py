"""Runs as files: JSON Lines. The first line is the run, each further line one request. Compact, appendable, readable with jq."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ultrafast.bench.records import SCHEMA_VERSION, RequestRecord, Run, RunRecord
from ultrafast.core.errors import UltrafastError


class ResultFileError(UltrafastError):
    """A result file cannot be read: missing, cut, of another kind or from a newer version."""

    code = "invalid_result_file"


def write_run(run: Run, path: Path) -> None:
    """Write a run; the file appears complete or not at all."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.writelines(encode_lines(run.record, run.requests))
    temporary.replace(path)


def encode_lines(record: RunRecord, requests: Iterable[RequestRecord]) -> Iterator[bytes]:
    """The lines of a result file, each with its line break."""
    encode = msgspec.json.Encoder().encode
    yield encode(record) + b"\n"
    for request in requests:
        yield encode(request) + b"\n"


def read_run(path: Path) -> Run:
    """Read a run that `write_run` wrote.

    Raises:
        ResultFileError: with the line at fault.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ResultFileError(
            f"{path} cannot be read: {error.strerror}.", hint="Name a .jsonl file of `ultrafast bench`."
        ) from error
    if not lines:
        raise ResultFileError(f"{path} is empty.", hint="Name a .jsonl file of `ultrafast bench`.")
    record = _read_record(path, lines[0])
    decoder = msgspec.json.Decoder(RequestRecord)
    requests = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            requests.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise ResultFileError(f"{path}, line {number} is no request record: {error}.", hint="The file may be cut.") from error
    return Run(record, sorted(requests, key=lambda request: request.index))


class _Head(msgspec.Struct):
    type: str = ""
    schema_version: int = 0


def _read_record(path: Path, line: bytes) -> RunRecord:
    hint = "Name the .jsonl file that `ultrafast bench --result-dir` wrote."
    try:
        head = msgspec.json.decode(line, type=_Head)
        if head.type != "run":
            raise ResultFileError(f"{path} is no result of `ultrafast bench`.", hint=hint)
        if head.schema_version > SCHEMA_VERSION:
            message = f"{path} has schema {head.schema_version}; this version reads up to {SCHEMA_VERSION}."
            raise ResultFileError(message, hint="Use a newer Ultrafast.")
        return msgspec.json.decode(line, type=RunRecord)
    except msgspec.DecodeError as error:
        raise ResultFileError(f"{path}, line 1 is no run record: {error}.", hint=hint) from error
