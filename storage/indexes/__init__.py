"""The five index objects of a remote log segment (spec/kafka-remote.md section 7)."""
