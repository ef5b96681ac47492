"""Layouts that trainers write, and how each becomes canonical; one idea a module.

Each rewrite is pure, moves no bytes (it returns windows on the source's tensors) and says what
it did, for the condition `Normalized`. Reading order: `wrappers` and `roots` (names),
`fused_linear`, `flat_experts`, `stacked_experts` (tensors), `missing_experts` (zeros).
"""
