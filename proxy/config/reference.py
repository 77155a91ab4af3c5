"""Writes docs/configuration.md out of the table of keys: `python -m proxy.config.reference`.

A test holds the file to what `reference()` returns, so the document cannot fall behind the code.
"""

import sys
from pathlib import Path

from proxy.config.model import LATER, SERVE_KEYS
from storage.config.keys import Key
from storage.config.sources import CLIENT_PREFIXES, variable_name

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m proxy.config.reference` out of the table of keys; edits here are lost. -->

`tidegate serve FILE` reads one Java properties file (Latin-1, other characters as `\\uXXXX`), because the tier's part
is the broker's own. A minimal one:

```properties
upstream.bootstrap.servers=broker-1:9092,broker-2:9092
broker.config=server.properties
```

`tidegate check FILE` shows every key with its value (secrets masked) and where it came from, and names all problems.

## Where values come from

The first that gives a value counts: **environment**, **FILE**, **broker.config**, default.

- **Environment:** `TIDEGATE_` and the key in capitals, `.` → `_`, `_` → `__`, `-` → `___`: `{disk}`
  is `cache.disk.bytes`. A variable that names no key is one warning. Plug-in keys lose their capitals this way, unless
  FILE or the broker's file holds the same key.
- **FILE** holds the keys below, plug-in keys and `config.providers`. Anything else is an error that names the nearest
  right key.
- **broker.config** names the broker's `server.properties`. Taken from it: the two plug-in class names and impl
  prefixes, the keys under those prefixes, and
  {clients}.
  Everything else in it is ignored, the broker's own rates (`remote.log.manager.*`) too.

Relative paths are relative to the file that holds them (in the environment: to the working folder). Plug-in keys are
handed on as they are.

## Variables

In both files a value may hold `${{env:NAME}}`, `${{file:path:key}}` (a properties file) and `${{dir:path:file}}` (a
file's content without its last line end), as Kafka's EnvVarConfigProvider, FileConfigProvider and
DirectoryConfigProvider have them; `config.providers` may give these three other
names. A variable that cannot be looked up is an error.

## Reload

SIGHUP has both files read again; so has a change of FILE, of the file that `broker.config` names, or of a certificate
or key file that `proxy.tls.*` or `upstream.ssl.*` name, within a few seconds, also behind a symbolic link. Files that
`${{file:…}}` and `${{dir:…}}` read are looked at again only then. The column "reload" says when a running process
follows a key: at once, for new connections, or after a restart only, as all plug-in keys. The log has a line
`config_changed` for each key that is followed and `config_restart_needed` for each that waits. A configuration with a
mistake changes nothing: each mistake is a line `config_problem`, and the old values stay. Certificates of `proxy.tls.*`
are read anew with every reload; TLS towards clients is turned on or off, and `upstream.ssl.*` files are read anew, by
a restart only. The environment is that of the start.

## Plug-in keys

| keys | for |
|---|---|
| `rsm.config.*` (`remote.log.storage.manager.impl.prefix`) | the storage plug-in, in the broker's spelling |
| `rlmm.config.*` (`remote.log.metadata.manager.impl.prefix`) | the metadata plug-in, in the broker's spelling |
{client_rows}

Of Aiven's plugin these are read: `storage.backend.class` (its S3 and filesystem classes; GCS and Azure are refused by
name), `key.prefix`, `key.prefix.mask`, `encryption.*`, `storage.root`, `storage.s3.*` and `storage.aws.*`; without
credentials among them the SDK's own chain finds some. A wait for the store is bounded by
`storage.s3.api.call.attempt.timeout`, here 10 s by default. One key is ours: `storage.s3.checksum.mode`,
`when_required` (default) or `when_supported`, for stores that refuse the checksums which newer SDKs send.

`tidegate.PlainObjects` keeps a segment's files as they are, under the names that Kafka's LocalTieredStorage gives them,
as objects in a bucket: a folder that LocalTieredStorage wrote is one as soon as something serves it as S3. Its keys are
the same `storage.backend.class`, `storage.root`, `storage.s3.*`, `storage.aws.*` and `key.prefix`, which is put in
front as it is; LocalTieredStorage's own keys, in an inherited file, have no effect, and any other is an error that
names the nearest. Uploads are single up to `storage.s3.multipart.upload.threshold` (here 100 MiB, at most 5 GiB), and
in parts above, of `storage.s3.multipart.upload.part.size` (here 16 MiB, at least 5 MiB) or larger, so that 10,000 are
enough. Reading takes the right to list the bucket: without it S3 answers 403 for an index that a segment does not have.

With Aiven's plugin, `fetch.chunk.cache.size` gives `cache.disk.bytes` (of a MemoryChunkCache: `cache.memory.bytes`, at
most our own budget), `.retention.ms` gives `cache.retention.ms` and `.prefetch.max.size` gives
`readahead.stream.max.bytes`, unless these are set. Its cache path is never used, nor wiped.

The metadata topic's client takes `security.protocol`, `sasl.mechanism` with `sasl.jaas.config` (PLAIN, SCRAM,
OAUTHBEARER), `bootstrap.servers` and `ssl.*` from those keys, and what they leave open from `upstream.*`. Stores are
PEM (also inline) or PKCS#12; a JKS store is refused with the keytool line that converts it.

Sizes are bytes or a number with `KiB`, `MiB`, `GiB`, `TiB`. Times are milliseconds.
"""


def reference() -> str:
    """The whole document."""
    clients = ", ".join(f"`{prefix}*`" for prefix in CLIENT_PREFIXES)
    rows = "\n".join(
        f"| `{prefix}*` | the metadata topic's client, with or without the prefix before |"
        for prefix in CLIENT_PREFIXES
    )
    text = INTRODUCTION.format(disk=variable_name("cache.disk.bytes"), clients=clients, client_rows=rows)
    for key in SERVE_KEYS.keys:
        if key.section is not None:
            text += f"\n## {key.section}\n\n| key | kind | default | reload | |\n|---|---|---|---|---|\n"
        text += _row(key)
    text += "\n## Not in this version\n\nThese are read and checked, and refused until what they turn on is there:\n\n"
    return text + "".join(f"- `{later.key}`: {later.feature}\n" for later in LATER)


def _row(key: Key) -> str:
    name = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
    default = f"`{key.default}`" if key.default is not None else key.default_words
    if default is None:
        default = "**required**" if key.required else "none"
    secret = " Shown masked." if key.secret else ""
    return f"| {name} | {key.kind.words} | {default} | {key.reload.value} | {key.doc}{secret} |\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT}\n")
