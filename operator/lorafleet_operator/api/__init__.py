"""The custom resources as types; imports nothing of ours but the shared errors.

names       group, plurals, finalizer, labels, annotations, rules for served names and paths
meta        the parts that every resource has: metadata, conditions, the base model class
v1alpha1    LoRAAdapter and EnginePool: import the models from here
adapter, source, pool, fields   the models themselves
conditions  condition types, reasons, merging, and the one table error -> condition
quantity    Kubernetes quantities in bytes
rules       the CEL rules that the API server enforces, each with the text a person sees
schema      models -> structural schema -> CRD documents; golden files in crds/
"""
