"""Where objects are: one seam of five verbs, and a store of each kind behind it. Read `object_store` first."""
