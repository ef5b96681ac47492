"""Tensors and orders to the sidecars. The only package that knows gRPC.

client     SidecarClient: one sidecar's methods; the only place that sees gRPC status codes
streaming  one read of a source, fanned out to many engines with bounded queues
links      one watched connection per engine pod: the latest inventory, and its age
"""
