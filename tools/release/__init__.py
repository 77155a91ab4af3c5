"""All that is published of a version, made from its tag: `make release`.

- `__main__`: from a clean tag to a folder, dist/VERSION, with a line of SHA256SUMS for each file;
- `sbom`: what the image holds, as CycloneDX has it, out of the lock.
"""
