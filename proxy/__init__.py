"""The trio application, laid out as a request travels: `connection`, then `fetch` or `offsets`, then `upstream`.

`process` puts the parts together; `cli`, `serve` and `check` are the commands. Read `connection` first, then `fetch`.
"""
