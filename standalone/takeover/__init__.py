"""What a broker must know before it owns the tier (docs/standalone.md#takeover). Read `restored_lineage` first."""
