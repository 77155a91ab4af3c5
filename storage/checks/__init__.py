"""Checks of a tier against its metadata, for audits. They are synchronous and only read. Read `segment_check` first."""
