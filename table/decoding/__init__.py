"""Record batches to Arrow columns, without a Python call per record. Read `record_decoder` first."""
