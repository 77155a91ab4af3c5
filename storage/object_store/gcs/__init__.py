"""Google Cloud Storage. Read `store` first."""
