"""The verdict on one adapter for one engine: the checks of staging, then the values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError
from lorafleet.header import parse_header
from lorafleet.layout import plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.profile import EngineProfile

from lorafleet_operator.inspection.image import CanonicalImage
from lorafleet_operator.inspection.numbers import numbers_of
from lorafleet_operator.inspection.report import IDENTITY, Contents, Report

if TYPE_CHECKING:
    from lorafleet_operator.inspection.numbers import ModuleNumbers
    from lorafleet_operator.sources.base import ResolvedAdapter, Source

UNCHECKED = EngineProfile(base_model="")
"""Stands for an engine of which nothing is known: no shape, rank or base model is checked."""


async def examine(
    source: Source,
    profile: EngineProfile,
    *,
    adapter: str,
    allow_base_mismatch: bool = False,
    adapter_name: str = "",
    drop_unmatched: str = "",
) -> Report:
    """Return what an engine of this profile would make of the source's content.

    `adapter` stands in messages; the rest is what a LoRAAdapter's spec says of its content. A
    refusal is a Report too; nothing is raised but what is no LorafleetError (OSError: no room).
    """
    contents = None
    try:
        content = await source.resolve()
        header = parse_header(content.header_bytes, content.data_bytes)
        dtypes = sorted({tensor.dtype for tensor in header.tensors})
        contents = Contents(content.uri, content.revision, len(header.tensors), dtypes)
        config = AdapterConfig.parse(content.config_bytes, adapter=adapter)
        contents = replace(contents, base_model=config.base_model_name_or_path)
        # Planned in the source's own precision; no check depends on the image's dtype.
        layout = plan_layout(
            header,
            config,
            replace(profile, dtype="float64" if "F64" in dtypes else ""),
            adapter=adapter,
            allow_base_mismatch=allow_base_mismatch,
            adapter_name=adapter_name,
            drop_unmatched=drop_unmatched,
        )
        contents = replace(contents, rank=layout.rank)
        image = CanonicalImage(header, layout, adapter, profile.dtype)
        modules, identity = await _compute(image, content)
    except LorafleetError as error:
        return Report.refused(error, contents)
    return Report(
        normalized=(*content.normalized, *layout.normalized),
        warnings=(*layout.notes, *([IDENTITY] if identity else [])),
        modules=modules,
        contents=contents,
    )


async def _compute(
    image: CanonicalImage, content: ResolvedAdapter
) -> tuple[dict[str, ModuleNumbers], bool]:
    """Return each module's numbers, and whether they all come to nothing."""
    await image.fill(content)
    modules, identity = {}, True
    for name, scaling, a, b in image.factors():
        modules[name] = numbers_of(a, b, scaling)
        identity = identity and not (scaling and a.any() and b.any())
    return modules, identity
