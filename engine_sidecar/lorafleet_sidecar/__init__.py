"""The sidecar of one engine pod: owns the arena, stages adapters, drives vLLM. No torch."""
