"""The fuzzer: mutated headers, configs, triples, messages, pickles and transfers (`hack/fuzz`)."""
