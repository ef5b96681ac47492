"""`kubectl lora ...`: what people ask of adapters, and the way back to an earlier revision.

api         the API server, through the kubectl that runs the plugin: credentials are its business
text        what may be printed: tables, colours, no control characters from anybody's status
screen      a terminal's live table and progress bar
views       adapters, engines and revisions as programs get them; the documented JSON
adapters    bodies of any version of the operator -> views
engines     statuses and the sidecars' metrics -> views
ls, top, why, history, rollback, complete   one verb each
cli         arguments, output formats, one line for each error

Only `why` needs more than the standard library: it plans as the operator does.
"""
