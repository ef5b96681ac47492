"""The walk of a new user, docs/walkthrough.md, as a program: `hack/walk`.

The page is the script: `page` reads its steps, `shell` runs their commands one block after the other,
`checks` says what must be true after each. `machine` makes what a user would bring along: a model,
adapters, a bucket. A step without a check, or a check without a step, is an error (a unit test).
"""
