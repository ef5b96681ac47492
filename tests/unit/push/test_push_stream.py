"""What is kept of a manifest once it has been read."""

from __future__ import annotations

from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet_operator.push.stream import without_content

VALUES = {str: "some", int: 7, bool: True}


def test_of_a_manifest_all_but_its_content_is_kept() -> None:
    content = pb.PushManifest(
        adapter_config=b"{}", safetensors_header=b"{}", tensor_digests=[bytes(32)]
    )
    large = {field.name for field, _ in content.ListFields()}
    named = pb.PushManifest()
    for field in pb.PushManifest.DESCRIPTOR.fields:
        if field.name not in large:
            setattr(named, field.name, VALUES[type(getattr(named, field.name))])
    whole = pb.PushManifest()
    whole.MergeFrom(named)
    whole.MergeFrom(content)
    assert without_content(whole) == named
