"""Tensors and orders to the sidecars. The only package that knows gRPC.

client     SidecarClient: one sidecar's methods; the only place that sees gRPC status codes
streaming  one read of a source, sent to one or more engines with bounded queues
fanout     chains of engines that pass it on, and the healing of a chain; filling from a neighbour
pacing     token buckets: bytes a second of a pool, a tenant and a namespace
links      one watched connection per engine pod: the latest inventory, and its age
"""
