"""A folder as an object store. Read `store` first."""
