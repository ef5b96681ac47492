# The two commands are `make demo` and `make test`; each does its own set-up.
.PHONY: setup demo test lint clean

setup:
	@hack/setup

demo: setup
	@PYTHONPATH=$(CURDIR)/hack .venv/bin/python -m demo

test: setup
	@hack/check

lint: setup
	@hack/check lint

# Leaves .cache/bin, whose binaries take minutes to build; `rm -rf .cache` removes them too.
clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache/demo .cache/*.log
