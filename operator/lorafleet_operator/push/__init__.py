"""Trainers push revisions to the operator, authorised by Kubernetes.

Read `revision` (what a manifest is and how it is checked), `spool` (what is kept on disk, and for
how long), `incoming` (one push while it comes), `access` (who may), `named` (the LoRAAdapter that
names a revision), `service` (the protocol), `server`.
"""
