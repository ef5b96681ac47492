"""`lorafleet inspect PATH|URI`, `profile MODEL_DIR` and `size MODEL_DIR`: checks without any engine;
`push NAME DIR`: for trainers that write folders."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet.arguments import Parser, whole
from lorafleet.errors import InvalidAdapter, LorafleetError, NameTaken

from lorafleet_operator.api.names import served_name_problem
from lorafleet_operator.inspection import push_command, size_command
from lorafleet_operator.inspection.addresses import open_address, without_secrets
from lorafleet_operator.inspection.examine import UNCHECKED, examine
from lorafleet_operator.inspection.model_config import UnknownModel
from lorafleet_operator.inspection.offline_profile import DTYPES, FLAGS, offline_profile
from lorafleet_operator.inspection.profile_file import profile_text, read_profile
from lorafleet_operator.inspection.report import NO_ENGINE, Report, as_text, merged_json
from lorafleet_operator.inspection.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet.profile import EngineProfile

    from lorafleet_operator.sources.base import Source


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return 0, or 1 for a refusal, which is told in one line."""
    options = _parser().parse_args(argv)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lorafleet", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    inspect = verbs.add_parser("inspect", help="what is in an adapter and which engines take it")
    inspect.add_argument(
        "address",
        metavar="PATH|URI",
        help="a folder, a file, or a URI: " + ", ".join(f"{scheme}://" for scheme in SCHEMES),
    )
    inspect.add_argument(
        "--profile", type=Path, action="append", default=[], metavar="FILE",
        help="an engine's profile, from `lorafleet profile` or `lorafleet-sidecar profile`, both "
        "with -o json; may be given several times. Without it no shape, rank or base is checked",
    )  # fmt: skip
    inspect.add_argument("--served-name", metavar="NAME", help="check this name too")
    inspect.add_argument(
        "--adapter-name", default="", metavar="NAME", help="which adapter of a file with several"
    )
    inspect.add_argument(
        "--allow-base-mismatch", action="store_true", help="only warn of another base model"
    )
    inspect.add_argument(
        "--drop-unmatched", choices=("tower",), default="",
        help="leave out modules of a vision or audio tower that the engine lacks",
    )  # fmt: skip
    inspect.add_argument(
        "--allow-pickle", action=argparse.BooleanOptionalAction,
        help="whether adapter_model.bin may be read; by default not over HTTP and from the hub",
    )  # fmt: skip
    inspect.set_defaults(run=_inspect)

    profile = verbs.add_parser("profile", help="an engine's profile from a model's config.json")
    _add_engine_options(profile)
    profile.set_defaults(run=_profile)

    size_command.add_verb(verbs, _add_engine_options)
    size = verbs.choices["size"]
    size.set_defaults(run=_size)

    push = push_command.add_verb(verbs)
    push.set_defaults(run=_push)

    for verb in (inspect, profile, size, push):
        verb.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _add_engine_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", type=Path, metavar="MODEL_DIR", help="folder with config.json")
    verb.add_argument("--base-model", required=True, metavar="NAME", help="served model name")
    verb.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help="further name of the model"
    )
    verb.add_argument(
        "--dtype", choices=("auto", *DTYPES), default="auto", help="auto is the config's own"
    )
    verb.add_argument("--max-lora-rank", type=int, default=16, metavar="N")
    verb.add_argument("--max-loras", type=whole(1), default=1, metavar="N")
    verb.add_argument("--max-cpu-loras", type=whole(1), metavar="N")
    verb.add_argument(
        "--tensor-parallel", "--tensor-parallel-size", type=int, default=1, metavar="N"
    )
    verb.add_argument("--expert-parallel", "--enable-expert-parallel", action="store_true")
    verb.add_argument(
        "--flag", action="append", default=[], choices=FLAGS, metavar="NAME",
        help="flag of vLLM's LoRA configuration that is on: " + ", ".join(FLAGS),
    )  # fmt: skip


def _inspect(options: argparse.Namespace) -> int:
    reports = asyncio.run(_examine_all(options))
    if options.output == "json":
        _tell(json.dumps(merged_json(reports), indent=1))
    else:
        _tell(as_text(without_secrets(options.address), reports))
    return 0 if all(report.loads for report in reports.values()) else 1


async def _examine_all(options: argparse.Namespace) -> dict[str, Report]:
    """Return a report for each engine, by the profile's file; one if no profile is given."""
    name = options.served_name
    address = without_secrets(options.address)
    adapter = name or Path(address).name or address
    reports: dict[str, Report] = {}
    for file in options.profile or [None]:
        label = str(file) if file else NO_ENGINE
        try:
            profile = read_profile(file) if file else UNCHECKED
            if name is not None:
                _check_name(name, profile)
            source = open_address(options.address, os.environ, allow_pickle=options.allow_pickle)
            reports[label] = await _examine(source, profile, adapter, options)
        except LorafleetError as error:
            reports[label] = Report.refused(error)
        except OSError as error:
            reports[label] = Report.refused(
                LorafleetError(f"no temporary file for the tensors: {error.strerror}")
            )
    return reports


def _check_name(name: str, profile: EngineProfile) -> None:
    problem = served_name_problem(name)
    if problem is not None:
        raise InvalidAdapter(problem)
    if name in (profile.base_model, *profile.base_model_aliases):
        raise NameTaken(f"served name {name} conflicts with a served base model")


async def _examine(
    source: Source, profile: EngineProfile, adapter: str, options: argparse.Namespace
) -> Report:
    try:
        return await examine(
            source,
            profile,
            adapter=adapter,
            allow_base_mismatch=options.allow_base_mismatch,
            adapter_name=options.adapter_name,
            drop_unmatched=options.drop_unmatched,
        )
    finally:
        await source.aclose()


def _profile_of(options: argparse.Namespace) -> EngineProfile:
    return offline_profile(
        options.model,
        base_model=options.base_model,
        aliases=options.alias,
        dtype=options.dtype,
        max_lora_rank=options.max_lora_rank,
        max_loras=options.max_loras,
        max_cpu_loras=options.max_cpu_loras,
        tensor_parallel=options.tensor_parallel,
        expert_parallel=options.expert_parallel,
        flags=options.flag,
    )


def _profile(options: argparse.Namespace) -> int:
    try:
        profile = _profile_of(options)
    except UnknownModel as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    _tell(profile.to_json() if options.output == "json" else profile_text(profile))
    return 0


def _size(options: argparse.Namespace) -> int:
    try:
        profile = _profile_of(options)
        found = size_command.figures(profile, options.config, options.adapters, options.history)
    except OSError as error:
        print(f"lorafleet: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except (UnknownModel, LorafleetError) as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    _tell(json.dumps(found, indent=1) if options.output == "json" else size_command.as_text(found))
    return 0


def _push(options: argparse.Namespace) -> int:
    try:
        found = push_command.run(options)
    except LorafleetError as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    _tell(json.dumps(found, indent=1) if options.output == "json" else push_command.as_text(found))
    return 0


def _tell(text: str) -> None:
    """Print; a reader that has seen enough (`| head -1`) changes nothing of the verdict."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
