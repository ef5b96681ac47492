"""Trainers push revisions to the operator, authorised by Kubernetes.

Read `revision` (what a manifest is and how it is checked), `spool` (what is kept on disk, and for
how long) and `shelf` (the files of one adapter), `incoming` (one push while it comes), `message`
(its bytes) and `bulk` (what an earlier try or push brought), `access` (who may), `callers` (asked before a message is read), `turns` (how many at a
time), `named` (the LoRAAdapter that names a revision), `safe_point` (moments at which engines may be
recycled), `service` (the protocol), `stream` (its messages), `server`.
"""
