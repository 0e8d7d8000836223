"""`ultrafast warmup`: a request log becomes a plan of what to warm at the start."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import click
import msgspec

from ultrafast.bench.wording import duration
from ultrafast.cli.number_range import CountRange
from ultrafast.cli.out_file import OutFile
from ultrafast.core.errors import ConfigError
from ultrafast.engine.warmup_plan import WarmupPlan
from ultrafast.observe.request_log.key import key_path, read_key
from ultrafast.observe.request_log.reader import read_head, read_records
from ultrafast.observe.request_log.record import LogRecord
from ultrafast.plan.warmup.make import make_plan
from ultrafast.plan.warmup.prefixes import Choice

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--from-log", "log", type=_PATH, required=True, metavar="FILE", help="Request log; its older files are read, too.")
@click.option("--out", type=OutFile(), metavar="FILE", help="Write the plan here, for engine.warmup_plan; else only show it.")
@click.option("--key-file", type=_PATH, metavar="FILE", help="Key of the names in the log; beside the log by default.")
@click.option("--min-uses", type=CountRange(min=2), default=3, show_default=True, metavar="N", help="Of a prefix.")
@click.option(
    "--max-prefix-tokens", type=CountRange(min=0), default=65_536, show_default=True, metavar="N", help="Of all prefixes."
)
@click.option("--json", "is_json", is_flag=True, help="Print the plan as JSON.")
def warmup(log: Path, out: Path | None, key_file: Path | None, min_uses: int, max_prefix_tokens: int, is_json: bool) -> None:
    """Find out from a request log which shapes and prefixes are worth warming at the start."""
    key_file = key_file or key_path(log)
    records, num_block_tokens = _read(log)
    read_key(key_file)
    plan = make_plan(records, num_block_tokens, str(key_file.resolve()), Choice(min_uses, max_prefix_tokens))
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    click.echo(msgspec.json.encode(plan).decode() if is_json else _text(plan, out))


def _read(log: Path) -> tuple[list[LogRecord], int]:
    """The file and those that were set aside before it, oldest first."""
    older = []
    for number in count(1):
        file = log.with_name(f"{log.name}.{number}")
        if not file.exists():
            break
        older.append(file)
    files = [*reversed(older), log]
    sizes = {read_head(file).block_tokens for file in files}
    if len(sizes) > 1:
        raise ConfigError(f"The files of {log} name pieces of different lengths.", hint="Move the older ones away.")
    return [record for file in files for record in read_records(file)], sizes.pop()


def _text(plan: WarmupPlan, out: Path | None) -> str:
    lines = [
        f"{plan.num_requests:,} requests in {duration(plan.period_s)}",
        f"prefill chunks: {', '.join(map(str, plan.chunks))} tokens",
        f"streams at once: {', '.join(map(str, plan.decodes)) or '-'}",
        f"shared prefixes: {len(plan.prefixes)}",
    ]
    lines += [f"  {prefix.name}  {prefix.num_tokens:>7,} tokens  {prefix.num_uses:>7,} uses" for prefix in plan.prefixes[:20]]
    if len(plan.prefixes) > 20:
        lines.append(f"  and {len(plan.prefixes) - 20} more")
    if out is not None:
        lines.append(f"written to {out}; start with --set engine.warmup_plan={out}")
    return "\n".join(lines)
