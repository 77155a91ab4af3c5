"""Values and keys with a schema: from a batch's binary columns to typed ones. Imported only for reads that want it.

| file | |
|---|---|
| `wire_format` | the header that names a record's schema |
| `registry` | asks a schema registry |
| `settled` | on the driver: the columns' schemas, and what executors get |
| `typed_columns` | on executors: batches in, batches out |
| `dead_letters` | what a task could not decode |
| `conversion` | values to an Arrow array, good ones apart from bad ones |
| `avro`, `protobuf`, `json_schema` | one format each: its types as Arrow has them, and its decoder |
| `protobuf_wire` | Protobuf's bytes to columns without the library |
"""
