"""The API server. The only package that knows the Kubernetes client.

requests  paths, verbs and JSON, through the client
reads     bodies -> the small frozen objects that the rest works with; Secrets
writes    status in one patch, only when it changed; Events on transitions
"""
