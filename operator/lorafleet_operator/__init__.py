"""The operator: makes a fleet of engines serve what LoRAAdapter manifests say.

In reading order:

reconcile   one pass over one adapter: the whole product on one screen
rollout     what has to be done next: pure decisions, the two phases of a revision
facts       what a pass knows; observe, resolve, place and orders are its steps
report      what a pass says: conditions and status; pure
pool_pass   one pass over a pool: its status, and adapters that nobody owns
deletion    an adapter's way out
passes      a pass and what is written of it; rounds says when the next one runs
handlers    all that the framework calls; watched takes in what its watches bring
world       pods, pools, adapters and engines as the watches and links have brought them
memory      caches of what can be found out again

api/        the custom resources as types
sources/    where an adapter comes from
placement/  which engine gets it; pure
transfer/   tensors and orders to the sidecars; the only package that knows gRPC
cluster/    the API server; the only package that knows the Kubernetes client
inspection/ the command `lorafleet`: checks for people and pipelines, no part of the program

cli, settings, metrics, probes: the program around it.
"""
