"""Where an adapter comes from.

Rule: a provider (`volume`, `http`, `s3`) knows only how to open named files and read ranges of
them; what the files mean is `assemble`'s business. Providers never import one another. Read
`base` (the types), `bounds` (every limit), `assemble`, then one provider, then `registry`.
"""
