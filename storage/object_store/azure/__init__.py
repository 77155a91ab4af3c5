"""Azure Blob Storage. Read `store` first."""
